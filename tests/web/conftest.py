"""The browser of the dashboard's tests."""

from chromium import browser

__all__ = ["browser"]
