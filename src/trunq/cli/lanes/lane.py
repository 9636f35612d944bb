"""trunq lane: list, set, pause, resume, policy, rankings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, say, write_json, write_rows
from trunq.cli.operate.pause import Pause, how_long, with_words
from trunq.cli.operate.subscription import Name
from trunq.word import LanePolicy

app = option.noun(
    "Lanes of a queue that was made with them: list, set, pause, resume, policy, rankings.",
    "trunq queue create mail --lanes key",
    "trunq lane list mail",
    "trunq lane policy mail default fair --max-running 4",
    "trunq lane pause mail 'large tenant' --for 1h",
)

COLUMNS = (
    *("lane", "priority", "depth", "running", "oldest_ready", "paused", "max_running", "rate", "burst"),
    *("weight", "rank"),
)

RANKING_COLUMNS = ("queue", "subscription", "function", "ranker", "ranked_at", "error", "failed_at")


@dataclass(frozen=True, slots=True)
class Place:
    """Which lane."""

    lane: Annotated[
        str | None,
        typer.Argument(
            metavar="LANE",
            help="Name of the lane: the key or kind of its messages, '' for those without. "
            "A lane that is a priority alone has none.",
        ),
    ] = None
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", min=-32768, max=32767,
            help="Priority of the lane (default: 0), for a queue with lanes by priority.",
        ),
    ] = None  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The lane, as the client takes it."""
        if self.lane is None and self.priority is None:
            raise Mistake(
                "Say which lane: its name ('' for messages without a key or kind), --priority, or both."
            )
        return {"lane": self.lane or "", "priority": self.priority or 0}

    def __str__(self) -> str:
        name = "" if self.lane is None else shlex.quote(self.lane)
        return " ".join(filter(None, (name, "" if self.priority is None else f"--priority {self.priority}")))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane may."""

    max_running: Annotated[
        int | None,
        typer.Option("--max-running", min=1, max=1000, help="So many messages run at once, at most."),
    ] = None
    rate: Annotated[
        option.Rate | None,
        typer.Option(
            "--rate", parser=option.rate, metavar="N[/INTERVAL]", help="So many go out a second, or 100/1m."
        ),
    ] = None
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst", min=1, help="So many of them go out at once after a quiet time (default: 1)."
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The limits, as the client takes them."""
        if self.burst is not None and self.rate is None:
            raise Mistake("--burst says how much of a rate may go out at once: give --rate too.")
        a_second = None if self.rate is None else self.rate.number / self.rate.interval.total_seconds()
        return {"max_running": self.max_running, "rate": a_second, "burst": self.burst}


@option.verb(
    app, "list", "trunq lane list mail", "trunq lane list mail --json | jq '.[] | select(.depth > 100)'"
)
def list_lanes(
    queue: option.Queue,
    subscription: option.Subscription = "default",
    limit: option.Limit = 100,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the lanes that have messages or settings of their own, the deepest first.

    depth is how many messages wait, exact up to 1,000. The limits of a lane are its own, or those that
    `trunq lane policy` gives to each.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_lanes(queue, subscription, limit)]
        rankings = [row for row in trunq.list_rankings(queue) if row.subscription == subscription]
    nothing = f"Nothing waits or runs in a lane of {queue}, and none has settings."
    write_rows(found if json or csv else _for_people(found), COLUMNS, json, nothing, csv)
    for ranking in rankings:
        who = (
            "no process has it, the last ranks stay"
            if ranking.ranker is None
            else f"called by {ranking.ranker}"
        )
        why = "" if ranking.error is None else f"; it failed: {ranking.error.splitlines()[0]}"
        say("Ranked by the function {function}: {who}{why}.", function=ranking.function, who=who, why=why)


@option.verb(
    app,
    "set",
    "# Three times the share of another lane",
    "trunq lane set mail 'large tenant' --weight 3",
    "# Invoices first, and 2 of them at once",
    "trunq lane set events invoice --rank -1 --max-running 2",
    "# As all others again",
    "trunq lane set events invoice --as-others",
)
def set_lane(
    queue: option.Queue,
    place: Place,
    subscription: option.Subscription = "default",
    weight: Annotated[
        int | None,
        typer.Option("--weight", min=1, max=100, help="How many times the share of another it gets."),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            min=-100,
            max=100,
            help="Its place instead of that by the policy: the smallest is first.",
        ),
    ] = None,
    as_others: Annotated[
        bool,
        typer.Option("--as-others", metavar=option.FLAG, help="Take back all that was set of this lane."),
    ] = False,
    *,
    limits: Limits,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Set the limits, the weight and the rank of one lane, in place of those it had.

    What you leave out is as for the other lanes. A limit holds for messages that are handed out from now
    on. A pause stays.
    """
    settings = limits.given() | {"weight": weight, "rank": rank}
    if as_others == any(value is not None for value in settings.values()):
        raise Mistake("Give what this lane may, its weight or its rank, or else --as-others.")
    lane = place.given()
    with client(database) as trunq:
        trunq.set_lane(queue, subscription, **lane, **settings)
    if json:
        write_json({"queue": queue, "subscription": subscription, **lane, **settings})
    else:
        say("Lane {lane} of {queue} is set. See it with: trunq lane list {queue}", lane=place, queue=queue)


@option.verb(
    app,
    "pause",
    "# Until somebody resumes it",
    "trunq lane pause mail 'large tenant'",
    "trunq lane pause mail 'large tenant' --for 1h",
    "# Where lanes are priorities",
    "trunq lane pause work --priority 9",
)
def pause_lane(
    queue: option.Queue,
    place: Place,
    subscription: option.Subscription = "default",
    *,
    pause: Pause,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Pause one lane until a time or `trunq lane resume`; other lanes go on.

    Running messages go on, and waiting ones are kept.
    """
    lane = place.given()
    with client(database) as trunq:
        until = pause.end(trunq)
        trunq.pause_lane(queue, subscription, **lane, until=until)
    if json:
        told = {"queue": queue, "subscription": subscription, **lane, "paused": True, "paused_until": until}
        write_json(told)
    else:
        say("Lane {lane} of {queue} is paused {until}. Resume it with: trunq lane resume {queue} {lane}",
            queue=queue, lane=place, until=how_long(until))  # fmt: skip


@option.verb(app, "resume", "trunq lane resume mail 'large tenant'", "trunq lane resume work --priority 9")
def resume_lane(
    queue: option.Queue,
    place: Place,
    subscription: option.Subscription = "default",
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Resume a lane that was paused. Sleeping workers are woken at once."""
    lane = place.given()
    with client(database) as trunq:
        resumed = trunq.resume_lane(queue, subscription, **lane)
    if json:
        write_json({"queue": queue, "subscription": subscription, **lane, "resumed": resumed})
    else:
        says = "goes on" if resumed else "was not paused"
        say(f"Lane {{lane}} of {{queue}} {says}.", lane=place, queue=queue)


@option.verb(
    app,
    "policy",
    "# Each lane in turn, and no more than 4 messages of one at once",
    "trunq lane policy mail default fair --max-running 4",
    "# The smallest priority first",
    "trunq lane policy work default priority",
    "# By a function of yours, which some process has: trunq leader shop:ranks",
    "trunq lane policy mail default ranked --function by_need",
)
def policy(
    queue: option.Queue,
    subscription: Name,
    policy: Annotated[
        LanePolicy | None,
        typer.Argument(
            metavar="POLICY",
            help="fair: a share of each lane in turn; priority: the smallest priority first; "
            "ranked: by a function of yours.",
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--function",
            metavar="NAME",
            help="The function that ranks, by the name under which `trunq leader shop:ranks` has it.",
        ),
    ] = None,
    *,
    limits: Limits,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Set the order in which a subscription serves its lanes, and the limits of each lane.

    A limit that you leave out is removed. Every eighth lease goes to the lane that has waited longest, so
    no lane waits for ever. `trunq lane set` gives one lane limits of its own.
    """
    if policy is None:
        is_policy = subscription in get_args(LanePolicy)
        said = f"default {subscription}" if is_policy else f"{subscription} fair (or priority, ranked)"
        raise Mistake(f"Say which subscription, and which policy: trunq lane policy {queue} {said}")
    if (policy == "ranked") != (function is not None):
        raise Mistake(
            "The policy ranked goes by a function of yours, and no other does: --function names it."
        )
    settings = {"policy": policy, "function": function, **limits.given()}
    with client(database) as trunq:
        trunq.set_lanes(queue, subscription, **settings)
    if json:
        write_json({"queue": queue, "subscription": subscription, **settings})
    else:
        say("Subscription {subscription} of {queue} serves its lanes by the policy {policy}.",
            subscription=subscription, queue=queue, policy=policy)  # fmt: skip
        if function is not None:
            say("See who ranks them with: trunq lane rankings {queue}", queue=queue)


@option.verb(app, "rankings", "trunq lane rankings", "trunq lane rankings mail --json")
def rankings(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the subscriptions whose lanes your own function ranks, who calls it, and its last error.

    Without a ranker, no running process has the function, and the last ranks stay.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_rankings(queue)]
    way = "trunq lane policy QUEUE SUBSCRIPTION ranked --function NAME"
    nothing = f"No function ranks lanes. To have one do so: {way}"
    shown = found if json or csv else [{**row, "ranker": row["ranker"] or "nobody"} for row in found]
    write_rows(shown, RANKING_COLUMNS, json, nothing, csv)


def _for_people(rows: Sequence[Row]) -> list[Row]:
    """Rows without the columns that say nothing here: names where lanes are priorities, and the reverse."""
    named = any(row["lane"] for row in rows)
    prioritized = any(row["priority"] for row in rows) or not named
    return [
        with_words({**row, "paused": row["is_paused"]})
        | {
            "lane": (row["lane"] or "''") if named else None,
            "priority": row["priority"] if prioritized else None,
            "depth": f"{row['depth']:,}+" if row["is_more"] else row["depth"],
            "rate": row["rate"] and f"{row['rate']:,.4g}/s",
        }
        for row in rows
    ]
