"""The client, written here once; `_sync` is generated from it by tools/unasync.py."""

from trunq.client._async.client import AsyncClient

__all__ = ["AsyncClient"]
