"""A small proxy in front of a dashboard: it ends TLS, cuts a prefix off, and says so in headers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def proxied(inner: str, prefix: str, directory: Path) -> Iterator[str]:
    """The address of a proxy that passes what lies below `prefix` on to `inner`, without the prefix."""
    place = urlsplit(inner)
    loop = asyncio.new_event_loop()
    addresses: list[str] = []
    ready = threading.Event()
    over = asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, version = first.split(" ")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if not path.startswith(f"{prefix}/"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        kept = [line for line in lines if not line.lower().startswith(("connection:", "host:"))]
        more = [
            f"Host: {place.netloc}",
            "Connection: close",
            "X-Forwarded-Proto: https",
            f"X-Forwarded-Prefix: {prefix}",
        ]
        asked = "\r\n".join([f"{method} {path.removeprefix(prefix)} {version}", *kept, *more, "", ""])
        up, down = await asyncio.open_connection(place.hostname, place.port)
        try:
            down.write(asked.encode("latin-1") + body)
            while chunk := await up.read(65536):
                writer.write(chunk)
                await writer.drain()
        finally:
            down.transport.abort()

    async def serve() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate(directory))
        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
        addresses.append(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}")
        ready.set()
        await over.wait()
        server.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # Transports that were aborted close their sockets in the next rounds of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def run() -> None:
        # Here alone: Playwright has a loop of its own in the thread of the test.
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate and its key, of nobody."""
    made, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return made, key
