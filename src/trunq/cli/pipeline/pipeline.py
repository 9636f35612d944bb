"""trunq pipeline: create, list, run, show, cancel, skip, accept, pause, resume, state, drop..."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from trunq import Client, display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, err, out, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.cli.operate.pause import Pause, how_long, with_words
from trunq.cli.pipeline.run import (
    answer_words,
    asking,
    example,
    failed_words,
    followed,
    slice_words,
    start_words,
    trigger_words,
    work,
    written_words,
)
from trunq.cli.pipeline.sight import (
    compaction_of,
    own_state,
    print_backfills,
    print_pipeline,
    print_reasons,
    print_tree,
    seconds,
    warnings_of,
)
from trunq.display import place
from trunq.errors import PipelineNotFound

app = option.noun(
    "Pipelines: rows from Postgres, queues, files and functions into tables, queues and lakes, each once.",
    "trunq pipeline create flights.toml",
    "trunq pipeline run flights",
    "trunq pipeline show flights",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the pipeline.", autocompletion=completion.pipelines)
]
Reason = Annotated[str | None, typer.Option("--reason", help="Only rows that broke this rule.")]

COLUMNS = (
    "pipeline",
    "source",
    "sink",
    "trigger",
    "next_due",
    "runs",
    "last_outcome",
    "last_ended_at",
    "age",
    "fresh_by",
    "quarantined",
    "paused",
    "error",
)

_BECAME: Final = {True: "created", False: "changed", None: "unchanged"}


@option.verb(
    app,
    "create",
    "# flights.toml: [pipeline.flights], source = {...}, sink = {...}",
    "trunq pipeline create flights.toml",
)
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with pipelines.")],
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Make the pipelines of a TOML file, or change those that are there; their state and runs stay.

    A mistake is said before anything is changed. ${NAME} is kept as it is written, and expanded by the
    runner.
    """
    from trunq.pipeline import load  # noqa: PLC0415  # its models take a while
    from trunq.pipeline.definition.need import missing  # noqa: PLC0415

    found = load(file)
    with client(database) as trunq, trunq.transaction() as connection:
        created = {
            each.name: trunq.create_pipeline(each.name, each.definition, connection=connection)
            for each in found
        }
    triggers = {each.name: each.definition.get("trigger") for each in found}
    if json:
        write_json(
            [
                {
                    "pipeline": name,
                    "created": made is True,
                    "changed": made is False,
                    "trigger": triggers[name],
                }
                for name, made in created.items()
            ]
        )
        return
    examples = {each.name: example(each.definition.get("message", {})) for each in found}
    for name, made in created.items():
        how, what = start_words(name, triggers[name], examples[name])
        say(f"Pipeline {{name}} {_BECAME[made]}. {how}", name=name, what=what)
    for each in found:
        for sentence in missing(each):
            err.print(escape(f"Pipeline {each.name}: {sentence}."))


@option.verb(
    app, "list", "trunq pipeline list", "trunq pipeline list --json | jq '.[] | select(.error != null)'"
)
def list_pipelines(*, database: option.Database, json: option.Json = False, csv: option.Csv = False) -> None:
    """List the pipelines, with what became of their newest run, and how old the newest row in the sink is.

    The column that says how old is that of fresh by; else it is the time up to which the source was read.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_pipelines()]
    nothing = "There is no pipeline. Make one with: trunq pipeline create FILE"
    shown = [
        {
            **with_words(row),
            **{part: place(row["definition"][part]) for part in ("source", "sink")},
            "trigger": trigger_words(row["trigger"]),
            "age": seconds(row["age"]),
        }
        for row in found
    ]
    write_rows(found if json or csv else shown, COLUMNS, json, nothing, csv)


@option.verb(
    app,
    "run",
    "# Ask for a run, and work here until no run waits",
    "trunq pipeline run flights",
    "# Ask only, and leave it to a runner elsewhere",
    "trunq pipeline run flights --ask",
    """trunq pipeline run flights --message '{"day": 3}'""",
)
def run(
    name: Name,
    message: Annotated[
        str | None, typer.Option("--message", metavar="JSON", help="What functions find as context.message.")
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", metavar=option.FLAG, help="Ask for the run, and leave it to a runner.")
    ] = False,
    priority: Annotated[int, typer.Option("--priority", help="The smallest first (queue with lanes).")] = 0,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Run a pipeline: publish a message into the queue pipelines, and work on that queue until it is done.

    What is ready there is done too, and what runs after it. On a terminal it shows how far the run is. A run
    that was left open is ended first. One that fails is tried three times, and once if the reason lies in the
    pipeline; then its message waits for a runner.
    """
    with address(database) as dsn, Client(dsn, max_connections=2) as trunq:
        _require_ready(trunq, name, runs=not ask)
        id = trunq.run_pipeline(name, read_json("message", message), priority)
        failure = None
        if not ask:
            with followed(trunq, name):
                failure = work(dsn, id)
        row = next((each for each in trunq.list_runs(name, limit=20) if each.message_id == id), None)
        asked = next(iter(trunq.show_message("pipelines", id)), None)
    state = None if asked is None else asked.state
    if json:
        write_json({"pipeline": name, "message_id": id, "state": state, "run": row and row._asdict()})
    elif ask:
        say(
            "Message {id} asks for a run of pipeline {name}. See: trunq pipeline show {name}",
            id=id,
            name=name,
        )
    elif row is not None and row.outcome is not None:
        told = f"Run {{number}} of pipeline {{name}} is {row.outcome}: {{written}}."
        say(told, number=row.number, name=name, written=written_words(row.rows_out, row.rows_bad))
    elif asked is not None and state == "done":
        say(f"Pipeline {{name}} {answer_words(asked.result)}", name=name)
    if state == "dead":
        why = "" if asked is None or asked.error is None else f": {asked.error}"
        again = f"Its attempts: trunq message show pipelines {id}; once more: {asking(name, message)}"
        raise Mistake(f"The run did not succeed{why}\nNothing tries it again. {again}")
    if failure is not None:
        raise Mistake(failed_words(failure, name, f"so does: {asking(name, message)}"))


@option.verb(
    app,
    "show",
    "trunq pipeline show flights",
    "# A run, and those that ran after it",
    "trunq pipeline show flights --tree",
)
def show(
    name: Name,
    tree: Annotated[
        bool, typer.Option("--tree", metavar=option.FLAG, help="The newest run with those that ran after it.")
    ] = False,
    limit: option.Limit = 10,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Show a pipeline: how fresh its sink is, what its newest runs moved and how long that took.

    Bytes are those of rows in memory; source, work and sink say how long reading, what is between and writing
    took. Then come changes of the columns, and the quarantine by reason, with its newest row.

    Of a run that is open it shows how far it is, told each second: rows, bytes, and tasks of Spark.
    """
    with client(database) as trunq:
        row = _row(trunq, name)
        runs: list[Row] = [each._asdict() for each in trunq.list_runs(name, limit=limit)]
        if tree and runs:
            runs = [each._asdict() for each in reversed(trunq.list_runs(chain=runs[0]["chain"]))]
        changes: list[Row] = [each._asdict() for each in trunq.list_schema_changes(name, limit)]
        reasons: list[Row] = [each._asdict() for each in trunq.count_quarantine(name)]
        warnings = warnings_of(trunq, name)
        backfills = trunq.list_backfills(name, limit)
        row = {**row, "compaction": compaction_of(trunq, name)}
    if json:
        write_json({**row, "runs": runs, "schema_changes": changes, "reasons": reasons, "warnings": warnings,
                    "backfills": [each._asdict() for each in backfills]})  # fmt: skip
    elif tree:
        print_tree(runs)
    else:
        print_pipeline(row, runs, changes, reasons, warnings)
        print_backfills(backfills)


@option.verb(app, "cancel", "trunq pipeline cancel flights")
def cancel(
    name: Name,
    backfill: Annotated[
        int,
        typer.Option("--backfill", metavar="ID", help="A backfill, or one share, by the id of its message."),
    ] = 0,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Cancel the open run of a pipeline: it brings nothing, and the next one begins where it began.

    A continuous pipeline is paused as well. Whoever is at the run stops within seconds, unless a function of
    yours keeps it: with isolate = true that is killed, too. A run that nobody is at ends at once.
    """
    with client(database) as trunq:
        cancelled = trunq.cancel_pipeline(name, backfill)
        row = _row(trunq, name)
    ended = cancelled and (backfill != 0 or row["open_run"] is None)
    if json:
        write_json({"pipeline": name, "cancelled": cancelled, "ended": ended, "paused": row["paused"]})
        return
    say(
        "Pipeline {name} has no open run."
        if not cancelled
        else "The open run of pipeline {name} is cancelled."
        if ended
        else "The open run of pipeline {name} is cancelled, and a runner is at it, which hears of it. If it"
        " is open after 30 seconds, that runner has died: cancel it again.",
        name=name,
    )
    if row["paused"]:
        say("It is paused. Resume it with: trunq pipeline resume {name}", name=name)


@option.verb(app, "skip", "trunq pipeline skip flights")
def skip(name: Name, yes: Yes = False, *, database: option.Database, json: option.Json = False) -> None:
    """Give up the open run of a pipeline with its rows: they never arrive; the next run begins behind them.

    It says what is left out. For rows that can be mended, cancel the run instead: the next one reads them.
    """
    with client(database) as trunq:
        row = _row(trunq, name)
        if row["open_run"] is not None:
            confirm(f"Run {row['open_run']} of pipeline {name} with its rows: give up?", is_answered=yes)
        skipped = trunq.skip_pipeline(name)
    if json:
        write_json({"pipeline": name, "skipped": skipped})
    elif skipped is None:
        say("Pipeline {name} has no open run.", name=name)
    else:
        say("Run {number} of pipeline {name} is given up. These do not arrive: {rows}.",
            number=skipped["number"], name=name,
            rows=slice_words(row["definition"]["source"], skipped["slice"]))  # fmt: skip


@option.verb(app, "accept", "trunq pipeline accept flights")
def accept(name: Name, yes: Yes = False, *, database: option.Database, json: option.Json = False) -> None:
    """Go on with a pipeline whose sink holds another run than this database expects.

    One of the two was set back, by a failover or from a backup. What is lost here comes again, twice where
    the sink appends; what the sink has lost does not come again by itself.
    """
    with client(database) as trunq:
        row = _row(trunq, name)
        confirm(f"Pipeline {name} begins at {jsons.dumps(row['state'])}: go on from there?", is_answered=yes)
        held = trunq.accept_pipeline(name)
    if json:
        write_json({"pipeline": name, "sink_holds": held})
    elif held is None:
        say("Pipeline {name} has nothing to accept: no run of it has found its sink elsewhere.", name=name)
    else:
        say("Pipeline {name} goes on. Its sink holds run {held}.", name=name, held=held)


@option.verb(app, "pause", "trunq pipeline pause flights", "trunq pipeline pause flights --for 2h")
def pause_pipeline(name: Name, *, pause: Pause, database: option.Database, json: option.Json = False) -> None:
    """Begin no run of a pipeline until a time or `trunq pipeline resume`; what asks for one waits."""
    with client(database) as trunq:
        until = pause.end(trunq)
        trunq.pause_pipeline(name, until)
    if json:
        write_json({"pipeline": name, "paused": True, "paused_until": until})
    else:
        say("Pipeline {name} is paused {until}. Resume it with: trunq pipeline resume {name}",
            name=name, until=how_long(until))  # fmt: skip


@option.verb(app, "resume", "trunq pipeline resume flights")
def resume_pipeline(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """End the pause of a pipeline; the runs that were asked for meanwhile begin within seconds."""
    with client(database) as trunq:
        resumed = trunq.resume_pipeline(name)
    if json:
        write_json({"pipeline": name, "resumed": resumed})
    else:
        say(f"Pipeline {{name}} {'goes on' if resumed else 'was not paused'}.", name=name)


@option.verb(
    app,
    "state",
    "trunq pipeline state flights",
    "# Begin at the beginning",
    "trunq pipeline state flights --reset --yes",
    "trunq pipeline state events --set '{\"tick\": 17}' --yes",
)
def state(
    name: Name,
    set_: Annotated[str | None, typer.Option("--set", metavar="JSON", help="Begin there.")] = None,
    reset: Annotated[
        bool, typer.Option("--reset", metavar=option.FLAG, help="Begin at the beginning, as {} does.")
    ] = False,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Show where the next slice of a pipeline begins, or set it.

    What is in the sink stays: a pipeline that appends doubles rows that it reads again.
    """
    if reset and set_ is not None:
        raise Mistake("Give --set or --reset, not both.")
    with client(database) as trunq:
        found = own_state(_row(trunq, name))
        if reset or set_ is not None:
            confirm(f"The state of pipeline {name}: set?", is_answered=yes)
            trunq.set_pipeline_state(name, {} if reset else read_json("state", set_))
            found = _row(trunq, name)["state"]
    if json:
        write_json({"pipeline": name, "state": found})
    else:
        out.print(escape(jsons.dumps(found)))


@option.verb(
    app,
    "quarantine",
    "# How many rows broke which rule, and the newest of them",
    "trunq pipeline quarantine flights",
    "trunq pipeline quarantine flights --reason 'no tail number' --json",
    "# After a fix, send them through the pipeline again",
    "trunq pipeline quarantine flights --resend",
    "trunq pipeline quarantine flights --purge --yes",
)
def quarantine(
    name: Name,
    reason: Reason = None,
    limit: option.Limit = 20,
    resend: Annotated[
        bool, typer.Option("--resend", metavar=option.FLAG, help="Ask for a run that sends them again.")
    ] = False,
    purge: Annotated[bool, typer.Option("--purge", metavar=option.FLAG, help="Delete them.")] = False,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """List the rows of a pipeline that broke a rule, count them by reason, send them again or delete them."""
    if resend and purge:
        raise Mistake("Give --resend or --purge, not both.")
    with client(database) as trunq:
        counts: list[Row] = [row._asdict() for row in trunq.count_quarantine(name)]
        if resend:
            done: dict[str, Any] = {"pipeline": name, "message_id": trunq.resend_quarantine(name, reason)}
        elif purge:
            confirm(f"Rows in the quarantine of pipeline {name}: delete?", is_answered=yes)
            done = {"pipeline": name, "purged": trunq.purge_quarantine(name, reason)}
        else:
            rows: list[Row] = [row._asdict() for row in trunq.list_quarantine(name, reason, limit)]
            done = {"pipeline": name, "reasons": counts, "rows": rows}
    if json:
        write_json(done)
    elif resend:
        said = "Message {id} asks for a run that sends them again. A runner does it, and so does: {asking}"
        say(said, id=done["message_id"], asking=asking(name, None))
    elif purge:
        say("{rows} deleted.", rows=display.counted(done["purged"], "row"))
    else:
        print_reasons(counts, f"Pipeline {name} has no rows in quarantine.")
        if rows:
            of = () if all(row["pipeline"] == name for row in rows) else ("pipeline",)
            shown = [{**row, "run": row["number"], "reasons": ", ".join(row["reasons"])} for row in rows]
            write_rows(shown, (*of, "quarantine_id", "run", "reasons", "content"), False, "")


@option.verb(app, "drop", "trunq pipeline drop flights")
def drop(name: Name, yes: Yes = False, *, database: option.Database, json: option.Json = False) -> None:
    """Drop a pipeline with its state, its runs and its quarantine; what it wrote stays.

    Made again under the same name it is another pipeline, which begins at the beginning.
    """
    with client(database) as trunq:
        row = _row(trunq, name)
        confirm(f"Pipeline {name}, {display.counted(row['runs'], 'run')}: drop?", is_answered=yes)
        trunq.drop_pipeline(name)
    if json:
        write_json({"pipeline": name, "dropped": True})
    else:
        say("Pipeline {name} dropped.", name=name)


def _require_ready(trunq: Client, name: str, *, runs: bool) -> None:
    """Refuse before anything is asked for that this process then cannot do."""
    # Of an instance, the pipeline first: its pause is that of all.
    for each in dict.fromkeys((name.partition("/")[0], name)):
        known = _row(trunq, each)
        if known["paused"] and runs:
            raise Mistake(f"Pipeline {each} is paused. Resume it with: trunq pipeline resume {each}")
    if runs:
        require_extra()


def require_extra() -> None:
    """Before anything is begun that needs what comes with trunq[pipeline]."""
    try:
        import trunq.pipeline.runner as _  # noqa: F401, PLC0415  # Arrow takes a while
    except ModuleNotFoundError as error:
        raise Mistake(f"Pipelines need {error.name}: pip install 'trunq[pipeline]'.") from None


def read_json(what: str, given: str | None) -> Any:
    """What an option holds."""
    try:
        return None if given is None else jsons.loads(given)
    except ValueError as error:
        raise Mistake(f"The {what} is not JSON ({error}). Text must be in double quotes.") from None


def _row(trunq: Client, name: str) -> dict[str, Any]:
    try:
        return trunq.list_pipelines(name)[0]._asdict()
    except PipelineNotFound:
        raise Mistake(f'There is no pipeline "{name}". Those there are: trunq pipeline list.') from None
