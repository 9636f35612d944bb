"""The pipeline that tests of the shell are about."""

from __future__ import annotations

FILE = """[pipeline.flights]
source = {format = "table", table = "source"}
sink = {format = "table", table = "moved", mode = "upsert", key = ["id"], newest = "id"}
"""
