"""trunq db: install, upgrade, downgrade, version, uninstall, sql."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from trunq import display
from trunq import install as installer
from trunq.cli.ground import option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import err, say, write_json
from trunq.cli.ground.question import Yes, confirm
from trunq.cli.operate import downgrade as downgrades
from trunq.cli.operate import uninstall as removal
from trunq.cli.operate import upgrade as upgrades
from trunq.cli.operate.status import in_words
from trunq.install import Change
from trunq.record import Defect
from trunq.repair import mend

app = option.noun(
    "The database: put trunq into it, keep it up to date, take it out.",
    "# Into the database named by TRUNQ_DSN",
    "trunq db install",
    "# As a script, for a DBA who does not let programs change schemas",
    "trunq db sql > trunq.sql && psql -f trunq.sql",
)


FacadeOption = Annotated[
    str | None,
    typer.Option(
        "--facade",
        metavar="NAME",
        help="Another system's API over trunq's queues too: pgq (docs/operate/pgq.md).",
    ),
]


@option.verb(
    app,
    "install",
    "trunq db install --dsn postgresql://localhost/shop",
    "trunq db install --embedded",
    "# For programs written for PgQ, its schema and functions over the same queues",
    "trunq db install --facade pgq",
)
def install(facade: FacadeOption = None, *, database: option.Database, json: option.Json = False) -> None:
    """Install trunq into a database: four schemas, no extension, no superuser.

    It is one transaction under a lock, so twenty installs at once do no harm. If trunq is there already,
    this does what `trunq db upgrade` does.
    """
    with address(database) as dsn:
        _tell(installer.install(dsn, facade), json)


@option.verb(
    app,
    "upgrade",
    "trunq db upgrade",
    "# What it would do, and lock",
    "trunq db upgrade --dry-run",
    "# Put back what queues lack, and functions that somebody changed",
    "trunq db upgrade --repair",
)
def upgrade(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar=option.FLAG, help="Say what it would do and lock, and change nothing."
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            metavar=option.FLAG,
            help="Put back functions that somebody changed, and then indexes, triggers, defaults and segments"
            " that queues lack; publishers go on.",
        ),
    ] = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Bring the trunq in a database up to the version of this program.

    Tables are changed by the migrations that are missing, functions are applied again, and a facade that is
    there (`trunq db install --facade pgq`) with them. Then each queue follows, in a transaction of its own;
    stopped half way, it goes on when it is run again. Nothing happens when all is up to date.
    """
    with address(database) as dsn:
        if installer.version(dsn) is None:
            installer.compare(None)
        if dry_run:
            upgrades.show(upgrades.plan(dsn), json, is_repair=repair)
        else:
            change = installer.install(dsn, repair=repair, tell=_count_down)
            _tell(change, json, mend(dsn, _tell_repair) if repair else None)


def _tell_repair(defect: Defect) -> None:
    err.print(f"Repaired: {defect.defect}.", markup=False)


def _count_down(queue: str, left: int) -> None:
    err.print(f"Queue {queue} is up to date, {left} left.", markup=False)


@option.verb(
    app,
    "downgrade",
    "# What it would take back and drop",
    "trunq db downgrade --to 33 --dry-run",
    "trunq db downgrade --to 33 --file dropped.jsonl --yes",
)
def downgrade(
    to: Annotated[int, typer.Option("--to", min=1, help="Schema version to go back to.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="Where to write what it drops, as lines of JSON (default: here, by database and time).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar=option.FLAG, help="Say what it would do and drop, and change nothing."
        ),
    ] = False,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Take migrations back, to go back to an older release. It says what is dropped, and asks.

    What goes is written into a file first. Then, until `trunq db upgrade` of the older release has put its
    functions there, nobody can publish or work, and captured tables refuse changes: stop workers before. It
    is one transaction; a sentence says which migration cannot be taken back, and nothing is changed.
    """
    with address(database) as dsn:
        plan = downgrades.plan(dsn, to)
        if dry_run:
            downgrades.show(plan, json)
            return
        downgrades.list_losses(plan)
        confirm(f"Go back to schema {to}?", is_answered=yes)
        downgrades.run(dsn, to, file, json)


@option.verb(app, "version", "trunq db version", "trunq db version --json | jq .database")
def version(*, database: option.Database, json: option.Json = False) -> None:
    """Show the version of the schema in a database, and the one this program works with."""
    with address(database) as dsn:
        found = installer.version(dsn)
    wanted = installer.newest()
    if json:
        write_json({"database": found, "program": wanted})
    elif found is None:
        say("trunq is not in this database. Put it there with {command}.", command="trunq db install")
    elif found < wanted:
        say("The database has schema {found}, this program works with {wanted}: run {command}.",
            found=found, wanted=wanted, command="trunq db upgrade")  # fmt: skip
    elif found > wanted:
        say("The database has schema {found}, this program knows only {wanted}: run {command}.",
            found=found, wanted=wanted, command="pip install --upgrade trunq")  # fmt: skip
    else:
        say("The database has schema {found}, the newest.", found=found)


@option.verb(
    app,
    "uninstall",
    "trunq db uninstall",
    "# In a script, with whatever still waits",
    "trunq db uninstall --yes --force",
)
def uninstall(
    force: Annotated[
        bool,
        typer.Option(
            "--force", metavar=option.FLAG, help="Also when messages wait, or others have built upon trunq."
        ),
    ] = False,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Remove trunq from a database, with all queues and messages. It lists what it drops, and asks.

    It refuses while messages wait, or where a view, trigger or function of yours needs trunq. Each queue
    is dropped in a transaction of its own. Stopped half way, run it again: it goes on where it was.
    """
    with client(database) as trunq:
        found = removal.look(trunq)
        _list_losses(found)
        if found.waiting and not force:
            raise Mistake(
                f"{removal.say_waiting(found.waiting)}, and nothing was dropped. Let workers handle what"
                " waits (trunq queue close keeps more from coming), or give --force."
            )
        if found.strangers and not force:
            raise Mistake("Others need trunq, and nothing was dropped. Drop these first, or give --force.")
        confirm("Drop all of this?", is_answered=yes)
        for queue in found.queues:
            removal.drop_queue(trunq, queue, force=force)
            err.print(f"Queue {queue} dropped.", markup=False)
        removal.drop_schemas(trunq, found.schemas)
    if json:
        write_json({"queues": list(found.queues), "schemas": found.schemas, "others": found.strangers})
    else:
        say("trunq is no longer in this database.")


def _list_losses(found: removal.Contents) -> None:
    for queue, rows in found.queues.items():
        err.print(f"queue [bold]{escape(queue)}[/bold]")
        for row in rows:
            err.print(f"  {row.subscription}: {in_words(row)}", markup=False)
    for archive in found.archives:
        err.print(f"archive trunq_archive.{archive}", markup=False)
    err.print(f"schemas {', '.join(found.schemas)}")
    for stranger in found.strangers:
        err.print(f"{stranger}, which needs them", markup=False)


@option.verb(
    app,
    "sql",
    "trunq db sql | less",
    "# From schema 1 on, into a file",
    "trunq db sql --since 1 --file upgrade.sql",
)
def sql(
    since: Annotated[
        int, typer.Option("--since", min=0, help="Schema version the database has now; 0: none.")
    ] = 0,
    facade: FacadeOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the whole install as one SQL script, to read or to run by hand."""
    script = installer.render(since, facade)
    if file is None:
        typer.echo(script, nl=False)
    else:
        file.write_text(script, encoding="utf-8")
        say("Written to {file}. Run it with psql -f {again}.", file=file, again=file)


def _tell(change: Change, json: bool, repaired: list[Defect] | None = None) -> None:
    if json:
        facades = list(change.facades)
        applied = {"functions_applied": change.functions, "facades_applied": facades, "queues": change.queues}
        mended = {} if repaired is None else {"repaired": [defect._asdict() for defect in repaired]}
        write_json({"before": change.before, "after": change.after, **applied, **mended})
        return
    if change.before is None:
        say("trunq is installed (schema {after}). Create a queue with {command}.",
            after=change.after, command="trunq queue create NAME")  # fmt: skip
    elif change.before < change.after:
        say("Upgraded from schema {before} to {after}.", before=change.before, after=change.after)
    elif change.functions:
        say("Schema {after} was there; its functions were applied again.", after=change.after)
    elif change.queues:
        say("Schema {after} was there; an upgrade that was stopped is done now.", after=change.after)
    else:
        say("Schema {after} is there and up to date.", after=change.after)
    if change.queues:
        say("{queues} brought up to date.", queues=display.counted(change.queues, "queue was", "queues were"))
    if repaired is not None:
        count = len(repaired)
        say("{defects} repaired.", defects=display.counted(count, "defect was", "defects were"))
    for facade in change.facades:
        say("The API of {facade} is there, over the same queues.", facade=facade)
