"""How far a run of a pipeline is, and what starts it, in words."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import Any, Final

from rich.markup import escape

from trunq import Client, display
from trunq.cli.ground.failure import explain
from trunq.cli.ground.output import err
from trunq.record import Backfill
from trunq.wire.secret import without_password

_EVERY: Final = 0.5


def progress_words(progress: Any) -> str:
    """What a run has said of itself."""
    if not isinstance(progress, dict):
        return ""
    said = [
        f"{display.text(progress[name])} {words}"
        for name, words in (("rows_in", "rows in"), ("rows_out", "out"), ("rows_bad", "quarantined"))
        if progress.get(name) or (name == "rows_in" and name in progress)
    ]
    if progress.get("bytes"):
        said.append(f"{progress['bytes'] / 1e6:,.1f} MB")
    if progress.get("tasks"):
        said.append(f"{progress.get('done', 0)} of {progress['tasks']} tasks done")
    return ", ".join(said)


def trigger_words(trigger: Any) -> str | None:
    """What starts a pipeline by itself; None: nothing."""
    if not isinstance(trigger, dict):
        return None
    if "every" in trigger:
        from trunq.pipeline.definition.iso_duration import read_duration  # noqa: PLC0415  # needs the extra pipeline

        return f"every {display.text(read_duration(trigger['every']))}"
    if "cron" in trigger:
        return f"cron {trigger['cron']} ({trigger.get('time_zone', 'UTC')})"
    if trigger.get("on") == "message":
        return f"messages of {trigger.get('queue')}"
    return str(trigger.get("on", "continuous"))


def start_words(name: str, trigger: Any, message: str | None) -> tuple[str, str]:
    """What has a new pipeline run: a sentence, and what stands in it for {what}."""
    started = trigger_words(trigger)
    if started is None:
        return "Run it with: {what}", asking(name, message)
    if started == "continuous":
        return "A runner runs it {what}.", "as soon as its source has something new"
    if started == "webhook":
        made = f"trunq webhook create {name} pipelines --kind {name} --secret VARIABLE"
        return "Requests to a webhook start it. If it has none yet: {what}", made
    return "A runner starts it: {what}.", started


def work(dsn: str, awaited: int) -> Exception | None:
    """Be a runner until a message is answered; why it failed."""
    from trunq.pipeline.runner import Runner  # noqa: PLC0415  # Arrow takes a while

    # Functions of pipelines are found in the current directory first, as `trunq worker` finds a Worker.
    if "" not in sys.path:
        sys.path.insert(0, "")
    runner = Runner(dsn, until_empty=True, awaited=awaited)
    with _told_once(awaited):
        runner.run()
    return runner.failure


@contextmanager
def _told_once(id: int) -> Iterator[None]:
    """Keeps lines from the log of what the command says at its end, and of what `show` says of pipelines."""

    def is_other(record: logging.LogRecord) -> bool:
        of = vars(record)
        is_warning = record.name == "trunq.leader" and "duty" not in of and of.get("queue") == "pipelines"
        return of.get("message_id") != id and not is_warning

    loggers = [logging.getLogger(f"trunq.{who}") for who in ("worker", "leader")]
    for each in loggers:
        each.addFilter(is_other)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_other)


def failed_words(failure: Exception, name: str, again: str) -> str:
    """Why a run failed, and what to do; of what others' functions raise, also where."""
    if (why := explain(failure)) is None:
        from trunq.worker.handler.result import traceback_of  # noqa: PLC0415  # takes a while

        why = f"The run of pipeline {name} failed.\n{without_password(traceback_of(failure))}"
    return f"{why}\nAfter a mistake in its file: trunq pipeline create FILE. A runner tries it again; {again}"


def asking(name: str, message: str | None) -> str:
    """The command that asks for a run."""
    return f"trunq pipeline run {name}" + ("" if message is None else f" --message {quote(message)}")


def example(fields: dict[str, Any]) -> str | None:
    """What a message may look like that has these fields; None: it needs none."""
    made: dict[str, Any] = {}
    for path, field in fields.items():
        inner = made
        *above, last = path.split(".")
        for name in above:
            inner = inner.setdefault(name, {})
        inner[last] = 1 if field == "integer" else "..."
    return json.dumps(made) if made else None


def slice_words(source: dict[str, Any], slice: dict[str, Any]) -> str:
    """What a slice of a source has."""
    if "files" in slice:
        return ", ".join(str(path) for path, *_ in slice["files"])
    if source["format"] == "queue":
        return f"messages of {source['queue']} between the ticks {slice['lo']} and {slice['hi']}"
    if source["format"] == "table" and "hi" in slice:
        after = f" after the snapshot {slice['lo']} and" if slice["lo"] else ""
        return f"rows of {source['table']} that were committed{after} before the snapshot {slice['hi']}"
    if "ticks" in slice:
        return "changes of {} between the ticks {} and {}".format(source["table"], *slice["ticks"])
    if source["format"] == "table":
        why = f", since {slice['because']}" if slice.get("because") else ""
        return f"the rows of {source['table']} as they are{why}"
    return f"{source['format']} {json.dumps(slice)}"


def written_words(rows: int | None, bad: int | None) -> str:
    """What a run wrote and kept out."""
    written = f"{display.counted(rows or 0, 'row')} written"
    return f"{written}, {display.text(bad or 0)} quarantined"


def answer_words(answer: Any) -> str:
    """What became of a message that got no run of its own, behind the name of its pipeline."""
    told = answer if isinstance(answer, dict) else {}
    if "tables" in told:
        return "looked for tables, and asked for a run of each. See: trunq pipeline instances {name}"
    if told.get("outcome") == "asked":
        each = display.counted(told["instances"], "instance")
        of = "a run" if told["instances"] == 1 else "runs"
        return f"asked for {of} of {each}. See: trunq pipeline instances {{name}}"
    if told.get("number") is not None:
        which = f"got the answer of run {told['number']}, which began for another message"
        return f"{which}: {written_words(told['rows_out'], told['rows_bad'])}."
    return "had nothing new."


def share_words(row: Backfill) -> str:
    """How far a backfill in shares is."""
    said = [f"{row.done:,} of {display.counted(row.shares, 'share')} done"]
    said += [
        f"{number} {word}" for number, word in ((row.failed, "failed"), (row.running, "running")) if number
    ]
    if row.outcome is not None:
        said.append({"done": "it has ended"}.get(row.outcome, row.outcome))
    elif row.remaining is not None:
        said.append(f"about {display.text(row.remaining)} left")
    return ", ".join(said)


@contextmanager
def following(look: Callable[[], None]) -> Iterator[None]:
    """Looks again and again, beside what is done meanwhile."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_EVERY):
            # It shows, and decides nothing: a database that is away is the worker's to tell.
            with suppress(Exception):
                look()

    thread = threading.Thread(target=follow, name="trunq progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def followed(trunq: Client, pipeline: str) -> Iterator[None]:
    """Shows on a terminal how far the open run of a pipeline is."""
    if not err.is_terminal:
        yield
        return
    with err.status(f"Pipeline {escape(pipeline)} waits for its turn") as status:

        def look() -> None:
            for run in trunq.list_runs(pipeline, limit=1):
                if run.outcome is None:
                    words = progress_words(run.progress) or "begins"
                    status.update(escape(f"Run {run.number} of pipeline {pipeline}: {words}"))

        with following(look):
            yield
