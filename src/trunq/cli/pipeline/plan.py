"""trunq pipeline plan: what the next run would do."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import address
from trunq.cli.ground.failure import in_shell
from trunq.cli.ground.output import err, print_fact, say, write_json
from trunq.cli.pipeline.pipeline import Name, app, read_json, require_extra

if TYPE_CHECKING:
    from trunq.pipeline.plan import Planned


@option.verb(
    app,
    "plan",
    "trunq pipeline plan flights",
    "trunq pipeline plan flights --json | jq .columns",
    "# Of a pipeline with per: each instance, or one",
    "trunq pipeline plan orders",
    "trunq pipeline plan orders/acme",
)
def plan(
    name: Name,
    message: Annotated[
        str | None, typer.Option("--message", metavar="JSON", help="What would ask for the run.")
    ] = None,
    limit: option.Limit = 100,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Say what the next run of a pipeline would read and write, and do none of it.

    Nothing is written anywhere, and no message published. It says what the sink would get new columns for,
    and why the run would fail, as far as that can be known from here: run it where the runner runs, with its
    environment.
    """
    require_extra()
    from trunq.pipeline.plan import plan_pipeline  # noqa: PLC0415  # Arrow takes a while

    # Functions of pipelines are found in the current directory first, as a runner finds them.
    if "" not in sys.path:
        sys.path.insert(0, "")
    # Another database is asked by Spark, whose Java process takes a while.
    shows = (
        err.status(f"Looks at source and sink of pipeline {escape(name)}")
        if err.is_terminal
        else nullcontext()
    )
    with address(database) as dsn, shows:
        planned = plan_pipeline(name, dsn, message=read_json("message", message), limit=limit)
    if json:
        write_json(asdict(planned))
        return
    _print(planned)
    for each in planned.instances or []:
        say("")
        _print(each)


def _print(planned: Planned) -> None:
    say("The next run of pipeline {name}", name=planned.pipeline)
    for fact, value in (
        ("reads", planned.reads or None),
        ("rows", _rows(planned)),
        ("engine", f"{planned.engine}: {planned.why}" if planned.why else None),
        ("columns", _columns(planned)),
        # Of a sink that is made, all columns are new: they stand above.
        ("added", None if planned.makes_sink else _kinds(planned.added) or None),
    ):
        print_fact(fact, value, 12)
    for note in planned.notes:
        print_fact("note", note, 12)
    for each in planned.refused:
        hint = f": {in_shell(each['hint'])}" if each["hint"] else ""
        print_fact("refused", f"{each['message']}{hint}", 12)
    if planned.refused or planned.instances is not None:
        return
    say("What made its newest attempt fail may stop it again." if planned.has_failed
        else "Nothing is known that would stop it.")  # fmt: skip


def _rows(planned: Planned) -> str | None:
    if planned.rows is None:
        return None if planned.slice is None else "only reading tells"
    return ("" if planned.is_exact else "about ") + display.text(planned.rows)


def _columns(planned: Planned) -> str | None:
    if planned.columns is None:
        return None
    made = "the sink is made with " if planned.makes_sink else ""
    return made + _kinds(planned.columns)


def _kinds(columns: dict[str, str]) -> str:
    return ", ".join(f"{column} {kind}" for column, kind in columns.items())
