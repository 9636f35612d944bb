"""trunq pipeline backfill and shares: a range that is read again, whole or in shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trunq import Client, display
from trunq.cli.ground import option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, err, say, write_json, write_rows
from trunq.cli.pipeline.pipeline import Name, app, require_extra
from trunq.cli.pipeline.run import failed_words, following, share_words, work
from trunq.cli.pipeline.sight import warnings_of
from trunq.display import interval
from trunq.record import Backfill

COLUMNS: Final = ("share", "from", "to", "state", "rows_out", "took", "ended_at", "error")


@option.verb(
    app,
    "backfill",
    "# Rows of a table, by a column: from the first value, up to the second",
    "trunq pipeline backfill flights --column day --from 2030-01-01 --to 2030-02-01",
    "# In shares, a run each, one after the other; a length of time with times",
    "trunq pipeline backfill flights --column id --from 1 --to 900 --every 100",
    "# Files",
    "trunq pipeline backfill weather --path '/data/2030-01-*.csv'",
)
def backfill(
    name: Name,
    column: Annotated[str | None, typer.Option("--column", help="The column of a table.")] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="VALUE", help="The first value.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="VALUE", help="The value after the last.")] = None,
    path: Annotated[str | None, typer.Option("--path", help="Files, with *.")] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="LENGTH", help="In shares of '1 month', or of so many numbers."),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=32, help="So many shares at the same time.")
    ] = 1,
    here: Annotated[
        bool, typer.Option("--work", metavar=option.FLAG, help="Work here until it is done.")
    ] = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Ask for a run over a range that was read before, beside the runs going on, without moving the state.

    For sinks with mode upsert and newest: an append would double rows. A runner does it, or the next `run`.

    With --every the range is cut into shares. Each is a run: what is done stays done, and one that was killed
    goes on. One that fails three times is left out, and after three of those in a row the rest is not begun.
    `trunq pipeline shares` lists them and runs them again, `cancel --backfill` ends all of it.
    """
    given = {"column": column, "from": from_, "to": to, "path": path}
    range = {key: value for key, value in given.items() if value is not None}
    if at_once != 1 and every is None:
        raise Mistake("--at-once is for a range in shares: give --every as well, as '1 month'.")
    with address(database) as dsn, Client(dsn, max_connections=2) as trunq:
        if here:
            require_extra()
        id = trunq.backfill_pipeline(name, range, every, at_once)
        if here:
            failed = _work_on(trunq, dsn, name, id, in_shares=every is not None)
        found = _find(trunq, name, id) if every is not None else None
    if json:
        write_json({"pipeline": name, "message_id": id, **(found._asdict() if found else {})})
    elif found is None:
        say("Message {id} asks for a backfill of pipeline {name}.", id=id, name=name)
    else:
        say("Backfill {id} of pipeline {name}: {far}.", id=id, name=name, far=share_words(found))
        if found.outcome is None:
            say("See: trunq pipeline shares {name}", name=name)
    if here and failed:
        raise Mistake(failed)


@option.verb(
    app,
    "shares",
    "trunq pipeline shares flights",
    "# Those that failed, or never came to their turn, again; one of them again",
    "trunq pipeline shares flights --rerun",
    "trunq pipeline shares flights 4711 --rerun --share 7",
    "trunq pipeline shares flights --json | jq '.shares[].error'",
)
def shares(
    name: Name,
    id: Annotated[
        int | None, typer.Argument(metavar="[BACKFILL]", help="A backfill, by its id; default: the newest.")
    ] = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", metavar=option.FLAG, help="Run those again that are not done.")
    ] = False,
    share: Annotated[
        int | None, typer.Option("--share", metavar="NUMBER", help="With --rerun: this one alone, again.")
    ] = None,
    limit: option.Limit = 100,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """List the shares of a backfill, those first that failed, or run them again."""
    if share is not None and not rerun:
        raise Mistake("--share goes with --rerun.")
    with client(database) as trunq:
        again = trunq.rerun_shares(name, id, share) if rerun else None
        found: list[Row] = [row._asdict() for row in trunq.list_shares(name, id, limit)]
        whole = _find(trunq, name, id)
    if json:
        write_json({**whole._asdict(), "again": again, "shares": found})
        return
    if again is not None:
        of = f"of backfill {whole.backfill}"
        say("{said} again.", said=display.counted(again, f"share {of} runs", f"shares {of} run"))
    say("Backfill {id} of pipeline {name}: {far}.", id=whole.backfill, name=name, far=share_words(whole))
    write_rows([_with_words(row) for row in found], COLUMNS, False, "")
    if whole.shares > len(found):
        say("{shown} of {all} are shown: --limit.", shown=len(found), all=whole.shares)


def _with_words(row: Row) -> Row:
    begun, ended = row["asked_at"], row["ended_at"]
    took = (
        None
        if begun is None or ended is None
        else interval(timedelta(seconds=int((ended - begun).total_seconds())))
    )
    return {**row, "from": row["range"]["from"], "to": row["range"]["to"], "took": took}


def _find(trunq: Client, name: str, id: int | None) -> Backfill:
    found = trunq.list_backfills(name, 100)
    return next(row for row in found if id is None or row.backfill == id)


def _work_on(trunq: Client, dsn: str, name: str, id: int, *, in_shares: bool) -> str | None:
    """Run it here, a share after the other; why it did not succeed."""
    if not in_shares:
        failure = work(dsn, id)
        gives_up = f"to give it up: trunq pipeline cancel {name} --backfill {id}"
        return None if failure is None else failed_words(failure, name, gives_up)
    with _shown(trunq, name, id):
        while (row := _find(trunq, name, id)).outcome is None:
            messages = [
                row.message_id for row in trunq.list_shares(name, id, 10_000) if row.state == "running"
            ]
            if not messages or messages[0] is None:
                break
            if (why := _put_off(trunq, name)) is not None:
                return f"{why}. A runner goes on with backfill {id} then."
            work(dsn, messages[0])
    if row.outcome == "done":
        return None
    return f"It did not succeed. See why: trunq pipeline shares {name} {id}"


def _put_off(trunq: Client, name: str) -> str | None:
    """Why no run of a pipeline begins for a while; whose message nobody is given meanwhile."""
    found = (each["warning"] for each in warnings_of(trunq, name))
    return next((each for each in found if "has used its limits" in each or " is paused" in each), None)


@contextmanager
def _shown(trunq: Client, name: str, id: int) -> Iterator[None]:
    """How many shares are done, on a terminal."""
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"Backfill {id}")

        def look() -> None:
            row = _find(trunq, name, id)
            words = f"Backfill {id} of {name}" + (
                "" if row.remaining is None else f", about {interval(row.remaining)} left"
            )
            progress.update(
                task, total=row.shares, completed=row.done + row.failed + row.cancelled, description=words
            )

        with following(look):
            yield
        look()
