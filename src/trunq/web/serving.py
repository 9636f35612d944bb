"""The server of `trunq web`: it says where it listens once it does."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from trunq.errors import InvalidArgument


def configure(app: Any, prefix: str = "") -> uvicorn.Server:
    """A server of an application; `prefix` is what a proxy in front of it cuts off paths."""
    config = uvicorn.Config(
        app,
        root_path=prefix.rstrip("/"),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
        # Who the proxy speaks for is in its own header, which the guard believes or not.
        proxy_headers=False,
    )
    return uvicorn.Server(config)


async def serve(
    server: uvicorn.Server, *, host: str, port: int, listening: Callable[[tuple[str, int]], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises InvalidArgument where it cannot listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InvalidArgument(
                f"nothing can listen on {host}:{port}: {error.strerror or error}",
                "take another with --port; --port 0 takes one that is free",
            ) from None
        listener.listen(128)
        listening((host, listener.getsockname()[1]))
        await server.serve(sockets=[listener])
