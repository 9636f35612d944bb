"""A healthy server and its session, for tests of what the doctor finds."""

from diagnosing import dba, healthy

__all__ = ["dba", "healthy"]
