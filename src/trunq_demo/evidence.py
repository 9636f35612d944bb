"""What a run of the demo left behind: the numbers of its report, each counted where it ended up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the run: messages published, messages answered, how long first attempts had waited."""

    at: int
    published: int
    answered: int
    median_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many messages ended in one way; `tone`: good (handled), warn (after a retry) or bad (dead)."""

    label: str
    count: int
    tone: str


@dataclass(frozen=True, slots=True)
class Cell:
    """The delays of one carrier in one hour of the day, in minutes: the row that Spark computed."""

    carrier: str
    hour: int
    flights: int
    cancellations: int
    mean_delay: float | None
    p90_delay: float | None


@dataclass(frozen=True, slots=True)
class Month:
    """One partition of the lake table."""

    month: str
    flights: int
    cancellations: int


@dataclass(frozen=True, slots=True)
class Check:
    """A number that must be the same in the input and in the results."""

    what: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from publish to the handler's start, first attempts only."""

    median: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """A run of a pipeline, `at` so many seconds after the first; `after`: the pipeline that it followed."""

    at: float
    pipeline: str
    number: int
    after: str | None
    attempts: int
    rows_in: int
    rows_out: int
    rows_bad: int
    seconds: float
    outcome: str
    was_killed: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows in the quarantine of a pipeline, for one reason."""

    pipeline: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Told:
    """Calls of an API: all, those that it refused as too frequent, and those at which it failed."""

    calls: int
    refused: int
    failed: int


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, in seconds."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class PutOff:
    """From when to when a limit let no run begin, and what was said of it meanwhile."""

    began: float
    ended: float
    warning: str


@dataclass(frozen=True, slots=True)
class Customer:
    """An airport whose board is copied: when it asked, and its runs, in seconds since the first request.

    `waited`: of its requests, the median until the run began that had what was asked for; `age`: how old its
    copy was when the last run of all had ended; `changes`: of columns.
    """

    name: str
    asked: list[float]
    runs: list[Span]
    rows: int
    kept: int
    waited: float
    age: float
    put_off: PutOff | None
    changes: list[str]


@dataclass(frozen=True, slots=True)
class Act:
    """What the second act left: pipelines into a lake."""

    month: str
    seconds: float
    api: Told
    runs: list[PipelineLine]
    kept: list[Kept]
    customers: list[Customer]
    checks: list[Check]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the report shows."""

    started_at: datetime
    seconds: float
    replay_seconds: float
    published: int
    handled: int
    retried: int
    rejected: int
    given_up: int
    compensated: int
    compensation: int
    counted: int
    """Times that a schedule had the flights counted, and the most that waited then."""
    most_unanswered: int
    carriers: int
    """In the books; the last attempt at those was spared the first `went_on_from`."""
    went_on_from: int
    workers: int
    latency: Latency
    peak_answered: int
    lake_rows: int
    lake_files: int
    lake_batches: int
    timeline: list[Second]
    outcomes: list[Outcome]
    cells: list[Cell]
    months: list[Month]
    checks: list[Check]
    act: Act
    airlines: dict[str, str]
    versions: dict[str, str]
    places: dict[str, str] = field(default_factory=dict)
    """Where the user finds the results."""
    commands: dict[str, str] = field(default_factory=dict)
    """Commands for a closer look, and what each shows."""

    @property
    def dead(self) -> int:
        return self.rejected + self.given_up

    @property
    def holds(self) -> bool:
        return all(check.holds for check in (*self.checks, *self.act.checks))
