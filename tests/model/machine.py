"""Running a state machine against the database: the same sequences each time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run so many sequences of at most so many steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            # Shrinking takes minutes: add Phase.shrink when one fails and is not understood as it is.
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
