"""Which figures there are, made of rows: names, labels and texts. Ids, keys, workers, errors and lanes are no
labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunq.record.operate import LatestSample

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

FIGURE: Final = ("figure", "queue", "label", "value")
"""The columns of `trunq._list_figures`."""

OTHER: Final = "other"
"""The kinds of a queue beyond its first fifty, which the database counts together."""
_OTHERS: Final = "(others)"

OF_SIZES: Final = ("queue_bytes", "segments_held")
"""Those that ask for the size of each file, and so once a minute."""

GAUGES: Final = {
    "leader_up": ((), "Whether somebody performs the duties"),
    "sample_age_seconds": ((), "Since the duty sample was last performed"),
    "duty_age_seconds": (("duty",), "Since a duty was last done of that queue for which it is longest ago"),
    "oldest_transaction_seconds": ((), "Age of the oldest transaction that keeps vacuum from its work"),
    "tick_age_seconds": (("queue",), "Since the newest tick"),
    "queue_bytes": (("queue",), "Size of the segments of a queue, looked up once a minute"),
    "segments_held": (
        ("queue",),
        "Segments that are due to be emptied, and are not",
    ),
    "lost_messages": (("queue", "subscription"), "Messages that were lost, until accept_loss"),
    "lane_max_running": (("queue", "subscription"), "How many messages of each lane may run at a time"),
    "lane_rate": (("queue", "subscription"), "How many messages of each lane may run in a second"),
    "lanes_limited": (("queue", "subscription"), "Lanes with a limit of their own"),
    "lanes_paused": (("queue", "subscription"), "Lanes that are paused"),
    "schedule_late_seconds": (("queue", "schedule"), "How late the next time of a schedule is"),
    "pipeline_lag_seconds": (("pipeline",), "How old the newest of what is in the sink is"),
    "pipeline_quarantined_rows": (("pipeline",), "Rows in quarantine"),
    "pipeline_failing": (("pipeline",), "Whether its newest attempt has failed"),
    "pipeline_paused": (("pipeline",), "Whether it is paused"),
    "pipeline_last_rows_in": (("pipeline",), "Rows read by the newest run that ended"),
    "pipeline_last_rows_out": (("pipeline",), "Rows written by the newest run that ended"),
}
"""Those of `trunq._list_figures`, which is to say trunq_leader_up and so on: labels, beside database, and
texts.
"""

_STATES: Final = ("ready", "leased", "delayed", "dead", "parked")
_OF_SAMPLES: Final = {
    "oldest_ready": ("oldest_ready_seconds", "For how long the first message that is ready has waited"),
    "lag": ("lag_seconds", "Of a stream: since when its first unfinished message waits"),
    "lag_messages": ("lag_messages", "Of a stream: messages that it has not finished"),
    "workers": ("workers", "Workers that hold a lease, or held one within a minute"),
    "paused": ("paused", "Whether it is paused"),
}
_TIMES: Final = {
    "wait_seconds": ("waited", "From publishing to the first lease, of messages that succeeded"),
    "handler_seconds": ("took", "How long handlers ran that succeeded"),
}


REFUSED: Final = "refused"
_COUNTERS: Final = ("published", "answers", "pipeline_runs")


def names() -> set[str]:
    """The name of every figure that may be told, as Prometheus calls it; of a histogram, that of its
    buckets.
    """
    gauges = {"up", REFUSED, "messages", *GAUGES, *(name for name, _ in _OF_SAMPLES.values())}
    counters, histograms = {f"{name}_total" for name in _COUNTERS}, {f"{name}_bucket" for name in _TIMES}
    return {f"trunq_{name}" for name in gauges | counters | histograms}


class Total(NamedTuple):
    """A row of `trunq._list_totals`: how many messages ran and waited up to each of `bounds` (seconds), and
    beyond.
    """

    queue: str
    subscription: str
    kind: str
    took: list[int]
    waited: list[int]
    took_sum: float
    waited_sum: float
    bounds: list[float]


class Known(NamedTuple):
    """What was read of a database."""

    samples: Sequence[LatestSample]
    totals: Sequence[Total]
    figures: Sequence[tuple[Any, ...]]
    grant: str | None = None
    """The grant that shows the role what it may not see; None: it sees all."""
    is_seen: bool = True
    """Whether the role may see anything."""


def _known(figures: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Without those of a newer schema."""
    return (each for each in figures if each[0] == "pipeline_runs" or each[0] in GAUGES)


def is_up(known: Known | None) -> bool:
    """Whether the database has answered, with what the role may see."""
    return known is not None and known.is_seen


def families(databases: Mapping[str, Known | None]) -> list[Metric]:
    """All figures of databases, by what these are called; None: it is away."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    made: dict[str, Any] = {}

    def add(kind: Any, name: str, text: str, labels: Mapping[str, str], value: Any) -> None:
        if value is None:
            return
        if name not in made:
            made[name] = kind(f"trunq_{name}", text, labels=list(labels))
        made[name].add_metric(list(labels.values()), _number(value))

    for database, known in databases.items():
        one = {"database": database}
        add(GaugeMetricFamily, "up", "Whether the database has answered", one, is_up(known))
        if known is None:
            continue
        if known.grant is not None:
            text = "1: the role that reads these figures may not see all, and grant shows it the others"
            add(GaugeMetricFamily, REFUSED, text, one | {"grant": known.grant}, 1)
        for name, text, labels, value in _of_samples(known.samples):
            kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            add(kind, name, text, one | labels, value)
        _add_histograms(made, database, known.totals)
        for figure, queue, label, value in _known(known.figures):
            if figure == "pipeline_runs":
                text = "Runs that have ended"
                add(CounterMetricFamily, figure, text, one | {"pipeline": label}, value)
            else:
                names, text = GAUGES[figure]
                given = [each for each in (queue, label) if each is not None]
                # Of a pipeline there is no queue, of a schedule both.
                add(GaugeMetricFamily, figure, text, one | dict(zip(names, given, strict=True)), value)
    return list(made.values())


def _add_histograms(made: dict[str, Any], database: str, totals: Iterable[Total]) -> None:
    from prometheus_client.metrics_core import HistogramMetricFamily  # noqa: PLC0415

    for name, text, labels, buckets, total in _of_totals(totals):
        if name not in made:
            made[name] = HistogramMetricFamily(f"trunq_{name}", text, labels=["database", *labels])
        made[name].add_metric([database, *labels.values()], buckets, total)


Figure = tuple[str, str, dict[str, str], Any]


def _of_samples(samples: Iterable[LatestSample]) -> Iterator[Figure]:
    for each in samples:
        if each.subscription is None:
            text = "Messages that the queue has taken since its first sample"
            yield "published", text, {"queue": each.queue}, each.published
            continue
        reader = {"queue": each.queue, "subscription": each.subscription}
        for state in _STATES:
            text = "Messages by state; above 1,000 they may be estimates"
            yield "messages", text, reader | {"state": state}, getattr(each, state)
        for outcome, count in (each.answers or {}).items():
            yield "answers", "Answers by outcome", reader | {"outcome": outcome}, count
        for column, (name, text) in _OF_SAMPLES.items():
            value = getattr(each, column)
            if column == "oldest_ready" and value is None and each.mode == "shared":
                value = 0
            yield name, text, reader, value


Histogram = tuple[str, str, dict[str, str], list[tuple[str, float]], float]


def _of_totals(totals: Iterable[Total]) -> Iterator[Histogram]:
    # A kind of the user's may be called other, too.
    by_labels: dict[tuple[str, str, str], list[Total]] = {}
    for each in totals:
        kind = OTHER if each.kind == _OTHERS else each.kind
        by_labels.setdefault((each.queue, each.subscription, kind), []).append(each)
    for (queue, subscription, kind), of in by_labels.items():
        labels = {"queue": queue, "subscription": subscription, "kind": kind}
        bounds = [*(f"{bound:g}" for bound in of[0].bounds), "+Inf"]
        for name, (column, text) in _TIMES.items():
            counts = [sum(each) for each in zip(*(getattr(row, column) for row in of), strict=True)]
            buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(counts), strict=True)]
            yield name, text, labels, buckets, sum(getattr(row, f"{column}_sum") for row in of)


def _number(value: Any) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
