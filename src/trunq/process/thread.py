"""A thread beside the event loop, for functions of the user that are not async."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class Thread:
    """Runs one function at a time beside the event loop.

    A daemon, unlike the threads of concurrent.futures: a second signal must end the process though a function
    hangs.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; after `close`, whether it still runs a function."""
        return self._thread.is_alive()

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have the thread call `function`; the future gets what it returns or raises."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._work.put((loop, future, contextvars.copy_context(), function))
        return future

    def close(self) -> None:
        """End the thread after what it is doing."""
        self._work.put(None)

    def _serve(self) -> None:
        while _do(self._work.get()):
            pass


def wait_for(loop: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, Result], call: str) -> Result:
    """Have the event loop do some work, and wait for it in another thread.

    Raises RuntimeError in the thread of that loop, where `call` must be awaited.
    """
    assert loop is not None
    if asyncio._get_running_loop() is loop:
        work.close()
        raise RuntimeError(f"an event loop is running here: await {call}")
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def _do(work: _Work | None) -> bool:
    """Do one piece of work; False at the end.

    A function of its own: a thread that waits for work must not hold on to the last result, or to an error
    and all that its frames refer to.
    """
    if work is None:
        return False
    loop, future, context, function = work
    result, error = None, None
    try:
        result = context.run(function)
    except BaseException as raised:
        error = raised
    while True:
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:
            # The loop is closed: the worker was stopped at once and asks for no answer.
            return False
        except MemoryError as raised:
            # Without a word from us its caller would wait for ever: let go of everything and try again.
            result, error = None, raised.with_traceback(None)
            continue
        return True


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future refuses StopIteration, which would end whoever awaits it.
        future.set_exception(RuntimeError(f"it raised StopIteration: {error}"))
    else:
        future.set_exception(error)
