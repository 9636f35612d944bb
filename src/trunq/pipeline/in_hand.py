"""The runs that a runner has in hand, until they end or are given up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from trunq import Message, display
from trunq.pipeline.run import Executor

log = logging.getLogger("trunq.pipeline")


class InHand:
    """They are done in threads; each hears by an event that it is to stop."""

    def __init__(self) -> None:
        self.runs: dict[threading.Event, Message] = {}
        """By their events: a message whose lease is lost may come again before its attempt has ended."""
        self.is_given_up = False

    @contextmanager
    def taking(self, message: Message, lost: threading.Event) -> Iterator[None]:
        """Have a run in hand."""
        self.runs[lost] = message
        if self.is_given_up:
            lost.set()
        try:
            yield
        finally:
            del self.runs[lost]

    def give_up(self) -> None:
        """Runs that still go on stop where they are, as soon as they hear of it."""
        self.is_given_up = True
        if count := len(self.runs):
            log.warning("giving up what runs, to go on elsewhere: %s", display.counted(count, "run"))
        for lost in list(self.runs):
            lost.set()

    def give_back(self, executor: Executor) -> None:
        """Those that do not hear of it, since a function of the user's takes long, are given back all the
        same.
        """
        for message in list(self.runs.values()):
            with suppress(Exception):
                if (run := executor.running.get(message.id)) is not None:
                    executor.control.let_go(run, message.id)
                executor.client.release(message, after=timedelta(0))
