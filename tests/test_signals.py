"""How a process hears that it is to stop."""

from __future__ import annotations

import pytest

from trunq.process import signals


def test_two_who_hear_of_the_end_at_the_same_moment_start_one_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop, and the thread that awaits a supervisor: an error would keep the loop from stopping."""
    monkeypatch.setattr(signals, "heard_at", None)
    with signals._watchdog(60.0) as start:
        start()
        # What the second sees that looked before the first one noted it.
        signals.heard_at = None
        start()
    assert signals.heard_at is not None
