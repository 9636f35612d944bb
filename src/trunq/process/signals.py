"""Running a coroutine as a process: the fastest event loop there is, an end in good order on SIGTERM and
SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from time import monotonic
from types import FrameType
from typing import Any, Final

log = logging.getLogger("trunq")

STOP: Final = b"s"
END: Final = b"e"
"""What a supervisor says: stop, if nobody said so before, and end at once."""

orders: int | None = None
"""The pipe by which a supervisor says so. Its end, when the supervisor is killed, means stop."""

heard_at: float | None = None
"""When, by the clock of `monotonic`, this process was told to stop; the event loop may hear of it later."""

_STUBBORN: Final = 2.0
"""Seconds in which what is cancelled should end."""


def run_with_signals(
    main: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None], grace: float | None = None
) -> None:
    """Run `main` to its end. The first SIGTERM or SIGINT calls `stop`, the second cancels `main` and exits
    with 128 + its number. `grace` seconds after the first the process ends, with status 70, whatever runs,
    also while something keeps the event loop from hearing of it.
    What a supervisor says (`orders`) is as good as a signal.
    """
    loop_factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop  # noqa: PLC0415  # optional: faster by a third where it is installed

        loop_factory = uvloop.new_event_loop
    signals: list[signal.Signals] = []
    global heard_at  # noqa: PLW0603  # of an earlier run in this process
    heard_at = None

    async def run() -> None:
        task = asyncio.current_task()

        def hear(number: signal.Signals) -> None:
            signals.append(number)
            if len(signals) == 1:
                start_watchdog()
                stop()
            elif task is not None:
                task.cancel()

        try:
            with _listening(hear, signals, start_watchdog):
                await main()
        finally:
            await _end_without({each for each in asyncio.all_tasks() if each is not task})

    with _watchdog(grace) as start_watchdog, asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            runner.run(run())
        except asyncio.CancelledError:
            raise SystemExit(128 + signals[-1]) from None


@contextlib.contextmanager
def _listening(
    hear: Callable[[signal.Signals], None], heard: Collection[signal.Signals], first: Callable[[], None]
) -> Iterator[None]:
    """Hear signals, and a supervisor. Whoever signals both means it once, whichever comes first. `first` is
    called at once, in whatever thread, also while the event loop is blocked.
    """
    loop = asyncio.get_running_loop()
    is_echo = False

    def signalled(number: signal.Signals) -> None:
        nonlocal is_echo
        if is_echo:
            is_echo = False
        else:
            hear(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in a thread, not on Windows.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, signalled, number)
            _call_first(number, first)
    pipe = orders
    if pipe is None:
        yield
        return

    def follow() -> None:
        nonlocal is_echo
        said = os.read(pipe, 1)
        if not said:
            loop.remove_reader(pipe)
        if not heard:
            is_echo = said == STOP
            hear(signal.SIGTERM)
        if said == END:
            hear(signal.SIGTERM)

    loop.add_reader(pipe, follow)
    threading.Thread(target=_await_word, args=(pipe, first), daemon=True).start()
    try:
        yield
    finally:
        loop.remove_reader(pipe)


@contextlib.contextmanager
def _watchdog(grace: float | None) -> Iterator[Callable[[], None]]:
    """Gives what starts it; it ends the process when `grace` seconds after that this is not over."""
    if grace is None:
        yield _note
        return
    # A thread: what refuses to end may well be what the event loop runs.
    timer = threading.Timer(grace, _end_now, [grace])
    timer.daemon = True

    def start() -> None:
        if heard_at is None:
            _note()
            # The event loop and the thread of _await_word may come here at the same moment.
            with contextlib.suppress(RuntimeError):
                timer.start()

    try:
        yield start
    finally:
        timer.cancel()


def _note() -> None:
    global heard_at  # noqa: PLW0603  # one process, told once
    heard_at = heard_at or monotonic()


def _call_first(number: signal.Signals, first: Callable[[], None]) -> None:
    """Call `first` between two steps of the interpreter, where the event loop's own handler does nothing."""
    after = signal.getsignal(number)

    def handle(signum: int, frame: FrameType | None) -> None:
        first()
        if callable(after):
            after(signum, frame)

    signal.signal(number, handle)
    # As event loops have it: system calls go on.
    signal.siginterrupt(number, False)


def _await_word(pipe: int, first: Callable[[], None]) -> None:
    """Call `first` when a supervisor says something, and leave that to the event loop to read."""
    select.select([pipe], [], [])
    first()


async def _end_without(tasks: set[asyncio.Task[Any]]) -> None:
    """End the process here when tasks refuse to be cancelled: the event loop would wait for them for ever."""
    for task in tasks:
        task.cancel()
    if tasks and (left := (await asyncio.wait(tasks, timeout=_STUBBORN))[1]):
        log.error("ended without %s, which refuse to", ", ".join(task.get_name() for task in left))
        logging.shutdown()
        os._exit(70)


def _end_now(grace: float) -> None:
    log.error("ended: the %g s of grace are over, and something refuses to end", grace)
    logging.shutdown()
    os._exit(70)
