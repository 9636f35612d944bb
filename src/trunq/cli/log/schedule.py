"""trunq schedule: create, list, show, preview, pause, resume, run, runs, sync, fill, delete."""

from __future__ import annotations

import json as jsons
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

import typer

from trunq import Client, display
from trunq.cli.application import load_schedules
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, out, print_fact, say, write_json, write_rows
from trunq.cli.operate.pause import Pause, how_long, with_words
from trunq.schedule import due_times, steps
from trunq.word import Missed, Overlap

app = option.noun(
    "Schedules publish messages again and again: "
    "create, list, show, preview, pause, resume, run, runs, sync, fill, delete.",
    "trunq schedule preview --cron '0 3 * * *' --zone Europe/Prague",
    "trunq schedule create nightly reports --cron '0 3 * * *' --kind nightly",
    "trunq schedule list",
    "trunq schedule runs nightly",
)

WHEN: Final = "When it is due: a cron text or an interval"
WHAT: Final = "The message"
COLUMNS = (
    "schedule",
    "next_due",
    "when",
    "queue",
    "paused",
    "kind",
    "error",
    "last_due",
    "missed",
    "overlap",
)
FACTS = (
    *("queue", "when", "next_due", "last_due", "last_id", "paused", "paused_until", "missed", "overlap"),
    *("kind", "key", "payload", "headers", "priority", "options", "max_age", "source", "due_times", "error"),
)
RUNS = ("due_at", "id", "skipped", "runs", "last_due_at", "fired_at", "error")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the schedule.", autocompletion=completion.schedules),
]


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule is due."""

    cron: Annotated[
        str | None,
        typer.Option(
            "--cron", metavar="TEXT", rich_help_panel=WHEN,
            help="minute hour day month weekday, with seconds in front if you like; or @daily, @hourly, ...",
        ),
    ] = None  # fmt: skip
    zone: Annotated[
        str | None,
        typer.Option(
            "--zone", metavar="ZONE", rich_help_panel=WHEN,
            help="Time zone of the cron text, or of the calendar that counts --every (default: UTC).",
        ),
    ] = None  # fmt: skip
    every: Annotated[
        str | None,
        typer.Option(
            "--every", parser=option.every, metavar="INTERVAL", rich_help_panel=WHEN,
            help="Every so often, a second at least: 30s, 10m, 2h; by the calendar: 2d, '1 month'.",
        ),
    ] = None  # fmt: skip
    start_at: Annotated[
        datetime | None,
        typer.Option(
            "--start-at", parser=option.moment, metavar="TIME", rich_help_panel=WHEN,
            help="Count the interval from this time (ISO 8601; default: now).",
        ),
    ] = None  # fmt: skip
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="HH:MM", rich_help_panel=WHEN,
            help="With --every by the calendar: the time of the day there (default: that of the start).",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """What is published."""

    kind: Annotated[
        str | None,
        typer.Option("--kind", "-k", rich_help_panel=WHAT, help="Which handler it is for."),
    ] = None
    key: Annotated[str | None, typer.Option("--key", rich_help_panel=WHAT, help="What it is about.")] = None
    headers: Annotated[
        dict[str, Any] | None,
        typer.Option(
            "--headers", parser=option.json_object, metavar="JSON", rich_help_panel=WHAT,
            help="An object beside the payload; schedule and due_at are added.",
        ),
    ] = None  # fmt: skip
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", min=-32768, max=32767, rich_help_panel=WHAT,
            help="For a queue with lanes by priority.",
        ),
    ] = None  # fmt: skip
    max_age: Annotated[
        timedelta | None,
        typer.Option(
            "--max-age", parser=option.interval, metavar="INTERVAL", rich_help_panel=WHAT,
            help="Nobody is to handle it later than so long after it was published.",
        ),
    ] = None  # fmt: skip
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=1, max=9999, rich_help_panel=WHAT,
            help="How often it is tried, whatever its subscriptions say.",
        ),
    ] = None  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The arguments of the client."""
        arguments = asdict(self)
        attempts = arguments.pop("max_attempts")
        return {**arguments, "options": None if attempts is None else {"max_attempts": attempts}}


@option.verb(
    app,
    "create",
    "# Every night at three, in Prague",
    "trunq schedule create nightly reports --cron '0 3 * * *' --zone Europe/Prague",
    "# Every ten minutes; left out while the last one is not finished",
    """trunq schedule create sweep work '{"all": true}' --every 10m --overlap skip""",
    "# Make up for every time that was missed",
    "trunq schedule create ledger work --cron @hourly --kind close --missed all",
    "# Every two days at nine, in Prague, in summer and winter",
    "trunq schedule create stock work --every 2d --at 09:00 --zone Europe/Prague",
)
def create(
    name: Name,
    queue: option.Queue,
    payload: Annotated[str | None, typer.Argument(metavar="PAYLOAD", help="JSON.")] = None,
    missed: Annotated[
        Missed,
        typer.Option(
            "--missed", help="Times that are over when somebody fires again; one: the last of them."
        ),
    ] = "one",
    overlap: Annotated[
        Overlap,
        typer.Option("--overlap", help="skip: leave a time out while the message before is not finished."),
    ] = "allow",
    *,
    times: Times,
    published: Published,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Publish a message at the times of a cron text or every so often; or change that schedule.

    Settings that you leave out get their defaults, so repeat all of them to change one. A pause stays.
    Workers fire schedules by themselves; so do `trunq leader` and pg_cron.
    """
    given = asdict(times) | published.given() | {"missed": missed, "overlap": overlap}
    with client(database) as trunq:
        created = trunq.create_schedule(name, queue, _payload(payload), **given)
        row = _row(trunq, name)
    if json:
        write_json({"schedule": name, "created": created, "next_due": row["next_due"]})
        return
    done = "created" if created else "changed"
    say(f"Schedule {{name}} {done}. It is due next at {{due}}.", name=name, due=display.text(row["next_due"]))


@option.verb(
    app,
    "list",
    "trunq schedule list",
    "trunq schedule list reports",
    "trunq schedule list --json | jq '.[] | select(.error != null)'",
)
def list_schedules(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the schedules of a queue, or of all, with the time when each is due next."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_schedules(queue)]
    nothing = "There is no schedule. Create one with: trunq schedule create NAME QUEUE --every 1h"
    write_rows(found if json or csv else map(_for_people, found), COLUMNS, json, nothing, csv)


@option.verb(app, "show", "trunq schedule show nightly", "trunq schedule show nightly --json | jq .next_due")
def show(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Show a schedule: when it is due, what it publishes, and how far it is."""
    with client(database) as trunq:
        row = _row(trunq, name)
    if json:
        write_json(row)
        return
    say("Schedule {name}", name=name)
    for fact in FACTS:
        print_fact(fact.replace("_", " "), _for_people(row)[fact] or None, 13)


@option.verb(
    app,
    "preview",
    "# Of a schedule that is there",
    "trunq schedule preview nightly",
    "# Of one that you think of",
    "trunq schedule preview --cron '30 2 * * 0' --zone Europe/Prague -n 5",
    "trunq schedule preview --every 90m --start-at 2030-01-01T08:00",
    "trunq schedule preview --every '1 month' --at 09:00 --zone Europe/Prague",
)
def preview(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of a schedule, or else --cron or --every.",
            autocompletion=completion.schedules,
        ),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="How many times.")] = 10,
    *,
    times: Times,
    database: option.Database,
    json: option.Json = False,
) -> None:  # fmt: skip
    """Show when a schedule is due next, or when one would be; nothing is changed.

    Times are those of the schedule's zone.
    """
    if sum(each is not None for each in (name, times.cron, times.every)) != 1:
        raise Mistake("Say of what: the name of a schedule, --cron or --every.")
    zone, now = times.zone, datetime.now(UTC)
    if name is not None:
        with client(database) as trunq:
            zone, found = _row(trunq, name)["zone"], trunq.preview_schedule(name, number)
    elif times.cron is not None:
        found = due_times(times.cron, zone, now, number)
    else:
        found = steps(times.every or 0, times.start_at or now, now, number, zone, times.at)
    if json:
        write_json(found)
        return
    for time in found:
        out.print(f"{time.astimezone(ZoneInfo(zone or 'UTC')):%a %Y-%m-%d %H:%M:%S %Z}")


@option.verb(
    app,
    "pause",
    "# Until somebody resumes it",
    "trunq schedule pause nightly",
    "trunq schedule pause nightly --for 2d",
)
def pause_schedule(name: Name, *, pause: Pause, database: option.Database, json: option.Json = False) -> None:
    """Pause a schedule until a time or `trunq schedule resume`.

    Times that pass meanwhile are skipped and not made up for; the schedule's runs say so.
    """
    with client(database) as trunq:
        until = pause.end(trunq)
        trunq.pause_schedule(name, until)
    if json:
        write_json({"schedule": name, "paused": True, "paused_until": until})
    else:
        say("Schedule {name} is paused {until}. Resume it with: trunq schedule resume {name}",
            name=name, until=how_long(until))  # fmt: skip


@option.verb(app, "resume", "trunq schedule resume nightly")
def resume_schedule(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """End the pause of a schedule; what was due during it stays skipped."""
    with client(database) as trunq:
        resumed = trunq.resume_schedule(name)
        due = _row(trunq, name)["next_due"]
    if json:
        write_json({"schedule": name, "resumed": resumed, "next_due": due})
        return
    says = "goes on" if resumed else "was not paused"
    say(f"Schedule {{name}} {says}. It is due next at {{due}}.", name=name, due=display.text(due))


@option.verb(app, "run", "trunq schedule run nightly")
def run(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Publish the message of a schedule now, besides its times; also of one that is paused."""
    with client(database) as trunq:
        id = trunq.run_schedule(name)
    if json:
        write_json({"schedule": name, "id": id})
    else:
        say("Schedule {name} published message {id}.", name=name, id=id)


@option.verb(
    app,
    "runs",
    "trunq schedule runs nightly",
    "# Those that published nothing",
    "trunq schedule runs nightly --json | jq '.[] | select(.skipped != null)'",
)
def runs(
    name: Name,
    limit: option.Limit = 20,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List what became of the times of a schedule, newest first: the message, or why there is none.

    missed: the time had passed before anybody fired it. overlap: the message before was not finished.
    paused: the schedule was. Consecutive skipped times share a line. `trunq message show` follows a
    message.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_schedule_runs(name, limit)]
    if not (json or csv):
        found = [{**row, "last_due_at": row["last_due_at"] if row["runs"] > 1 else None} for row in found]
    write_rows(found, RUNS, json, f"Schedule {name} has not run yet.", csv)


@option.verb(
    app,
    "sync",
    "# shop.py has: schedules = [trunq.Schedule(schedule='nightly', ...), ...]",
    "trunq schedule sync shop:schedules",
    "# Or those of a worker: @worker.schedule(...)",
    "trunq schedule sync shop:worker --source shop",
)
def sync(
    module: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="A list of trunq.Schedule, or a Worker that has some."),
    ],
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Name of the list (default: code).")
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Make the schedules in the database equal to a list in your code, at each deployment.

    Those that an older list of this source had are deleted. Others, made by hand or by another source, are
    left alone. A pause stays, and no time is lost.
    """
    wanted = load_schedules(module)
    with client(database) as trunq:
        changes = trunq.sync_schedules(wanted, source)
    if json:
        write_json([change._asdict() for change in changes])
        return
    for change in changes:
        say(f"Schedule {{name}} {change.change}.", name=change.schedule)
    if not changes:
        say("Nothing was to be changed: {schedules}.", schedules=display.counted(len(wanted), "schedule"))


@option.verb(app, "fill", "trunq schedule fill")
def fill(*, database: option.Database, json: option.Json = False) -> None:
    """Compute the next 1,000 due times of every schedule with a cron text.

    A leader does it by itself. Where pg_cron performs the duties and no worker runs, do it now and then:
    `trunq status` warns when fewer than 100 are left.
    """
    with client(database) as trunq:
        number = trunq.fill_schedules()
    if json:
        write_json({"schedules": number})
    else:
        say("Computed the times of {schedules}.", schedules=display.counted(number, "schedule"))


@option.verb(app, "delete", "trunq schedule delete nightly")
def delete(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Delete a schedule and the history of its runs; the messages it published stay."""
    with client(database) as trunq:
        trunq.delete_schedule(name)
    if json:
        write_json({"schedule": name, "deleted": True})
    else:
        say("Schedule {name} deleted.", name=name)


def _payload(given: str | None) -> Any:
    try:
        return None if given is None else jsons.loads(given)
    except ValueError as error:
        raise Mistake(
            f"The payload is not JSON ({error}). Text must be in double quotes, like '\"hello\"'."
        ) from None


def _row(trunq: Client, name: str) -> Mapping[str, Any]:
    found = next((row._asdict() for row in trunq.list_schedules() if row.schedule == name), None)
    if found is None:
        raise Mistake(f'There is no schedule "{name}". Those there are: trunq schedule list.')
    return found


def _for_people(row: Row) -> dict[str, Any]:
    """A row whose column `when` says when it is due."""
    if row["cron"] is not None:
        when = f"{row['cron']} {row['zone']}"
    elif row["calendar"] is None:
        when = f"every {display.interval(row['every'])}"
    else:
        at = "" if row["at"] is None else f" at {row['at']}"
        when = f"every {row['calendar']}{at} {row['zone']}"
    return {**with_words(row), "when": when}
