"""What the terminal shows while the demo runs: a line for each step, progress bars for the replay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

PLAIN_EVERY = 10.0
"""Seconds between two lines of progress where output is not a terminal."""


class Screen:
    """Prints the steps of a run."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, doing: str) -> Iterator[list[str]]:
        """Show a spinner during a step, then a line with the facts that the step appended to the list."""
        started = time.monotonic()
        facts: list[str] = []
        with self.console.status(f"{escape(doing)} …"):
            yield facts
        self.done(doing, *facts, seconds=time.monotonic() - started)

    def done(self, what: str, *facts: str, seconds: float | None = None) -> None:
        """Print the line of a finished step."""
        took = f"  [dim]{seconds:.1f} s[/dim]" if seconds is not None else ""
        said = "".join(f"  [dim]{escape(fact)}[/dim]" for fact in facts)
        self.console.print(f"[green]✓[/green] {escape(what)}{said}{took}")

    def bars(self, total: int) -> Bars:
        """The progress bars of the replay."""
        return Bars(self.console, total)


class Bars:
    """Context manager that shows how many messages are published, answered and in the lake."""

    NAMES = ("published", "answered", "in the lake")

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.started = self.said = time.monotonic()
        self.counts = dict.fromkeys(self.NAMES, 0)
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=36),
            TextColumn("{task.completed:>9,.0f}"),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {
            name: self.progress.add_task(name, total=total) for name in self.NAMES
        }
        self.facts = Text("", style="dim")
        self.live = Live(Group(self.progress, self.facts), console=console, refresh_per_second=8)

    def show(self, name: str, count: int) -> None:
        """Set a bar; it never moves back."""
        self.counts[name] = max(self.counts[name], min(count, self.total))
        self.progress.update(self.tasks[name], completed=self.counts[name])

    def tell(self, **facts: str) -> None:
        """Replace the line of facts below the bars."""
        self.facts.plain = "  " + "   ".join(
            f"{name.replace('_', ' ')} {fact}" for name, fact in facts.items()
        )
        if not self.console.is_terminal and time.monotonic() - self.said >= PLAIN_EVERY:
            self.said = time.monotonic()
            counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
            self.console.print(f"  {self.said - self.started:4.0f} s: {counts};{self.facts.plain}")

    def __enter__(self) -> Bars:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.facts.plain = ""
            self.live.stop()
