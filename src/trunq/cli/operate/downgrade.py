"""What `trunq db downgrade` takes back and drops, before it does, and where it wrote that."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from trunq import display
from trunq import downgrade as engine
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import err, say, write_json
from trunq.downgrade import Loss, Plan, plan

__all__ = ["list_losses", "plan", "run", "show"]


def show(found: Plan, json: bool) -> None:
    """Say it, or write it as JSON."""
    if json:
        write_json(asdict(found))
        return
    list_losses(found)
    say("Nothing was changed.")


def list_losses(found: Plan) -> None:
    """What is dropped, and whom it stops."""
    for migration in found.migrations:
        err.print(f"takes back migration {migration}", markup=False)
    for loss in found.losses:
        err.print(f"  drops {_describe(loss)}", markup=False)
    for grant in found.grants:
        err.print(f"  drops {grant.removesuffix(';')}", markup=False)
    for table in found.captured:
        err.print(f"  {table}, which is captured, refuses changes until the upgrade", markup=False)
    if found.workers:
        err.print(f"workers run, and will fail: {', '.join(found.workers)}", markup=False)
    err.print(
        f"nobody publishes or works until `trunq db upgrade` of the release with schema {found.after}",
        markup=False,
    )


def _describe(loss: Loss) -> str:
    rows = display.counted(loss.rows, "row")
    if not loss.columns:
        return f"{loss.table}: {rows}"
    return f"{', '.join(loss.columns)} of {loss.table}: {rows} with a value"


def run(dsn: str, to: int, file: Path | None, json: bool) -> None:
    """Go back, and say where what was dropped lies."""
    if file is None:
        name = conninfo_to_dict(dsn).get("dbname") or "database"
        file = Path(f"trunq-{name}-to-{to}-{datetime.now().astimezone():%Y%m%dT%H%M%S}.jsonl")
    try:
        done = engine.downgrade(dsn, to, file)
    except FileExistsError:
        raise Mistake(f"{file} is there already, and nothing was changed: name another file.") from None
    if json:
        write_json({**asdict(done), "file": str(file)})
        return
    say("Went back from schema {before} to {after}. What was dropped is in {file}.",
        before=done.before, after=done.after, file=file.absolute())  # fmt: skip
    say("Now {command}, of the release that works with schema {after}.",
        command="trunq db upgrade", after=done.after)  # fmt: skip
