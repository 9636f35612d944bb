"""trunq group: create, list, show, drop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, print_facts, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.word import Start

app = option.noun(
    "Groups: several members read one stream at the same time.",
    "# Order for each customer, whose number is the key of the message",
    "trunq group create orders ledgers --slots 16",
    "trunq group show orders ledgers",
)

COLUMNS = (
    "queue",
    "group_name",
    "slots",
    "members",
    "alive",
    "position_tick_id",
    "pending",
    "lag",
    "batches",
)
MEMBERS = ("member", "is_alive", "slot", "batch_id", "attempt", "opened_at", "expires_at", "seen_at")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")]


@option.verb(
    app,
    "create",
    "# Whole batches, beside each other",
    "trunq group create orders searchers",
    "# By key: messages of one key stay in order",
    "trunq group create orders ledgers --slots 16 --start earliest",
)
def create(
    queue: option.Queue,
    group: Group,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="NUMBER",
            help="Split messages by key over so many slots, a power of two: at most so many members work at "
            "the same time. It is fixed. Without: whole batches.",
        ),
    ] = None,
    start: Annotated[
        Start,
        typer.Option("--start", help="earliest: at the oldest message in reach; latest: at those to come."),
    ] = "latest",
    tick: Annotated[int | None, typer.Option("--tick", metavar="TICK", help="Start after this tick.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=option.moment, metavar="TIME", help="Start with what came at this time."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Create a group: several readers of one stream, each with a batch at the same time.

    With whole batches, a newer message may be done before an older one. By key (--slots), each key
    belongs to a slot, and one member at a time reads a slot, in order. An exclusive subscription of this
    name becomes a group with whole batches. Policies: trunq subscription set.
    """
    with client(database) as trunq:
        made = trunq.create_group(queue, group, slots, start, tick, at)
    if json:
        write_json({"queue": queue, "group": group, "slots": slots, "created": made})
    elif made:
        say("Group {group} of {queue} is there: give each member a name.", group=group, queue=queue)
    else:
        say("Group {group} of {queue} was there before.", group=group, queue=queue)


@option.verb(app, "list", "trunq group list", "trunq group list orders --json | jq '.[].pending'")
def list_groups(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List groups: how many members are alive, how far each group is, how much waits and since when.

    slots is empty where members take whole batches. The position is that of the slot furthest behind.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_groups(queue)]
    write_rows(found, COLUMNS, json, "There are no groups: trunq group create makes one.", csv)


@option.verb(app, "show", "trunq group show orders ledgers", "trunq group show orders ledgers --json")
def show(queue: option.Queue, group: Group, *, database: option.Database, json: option.Json = False) -> None:
    """Show a group, its members, and the batch and slot that each member has.

    A member is alive while it asks for batches, at least once a minute, or while it has time left for its
    batch.
    """
    with client(database) as trunq:
        row = next((each for each in trunq.list_groups(queue) if each.group_name == group), None)
        if row is None:
            raise Mistake(f"Queue {queue} has no group {group}. Those there are: trunq group list {queue}")
        members: list[Row] = [each._asdict() for each in trunq.list_members(queue, group)]
    if json:
        write_json({**row._asdict(), "members": members})
        return
    print_facts(row._asdict())
    write_rows(members, MEMBERS, False, "Nobody has asked for a batch yet.")


@option.verb(app, "drop", "trunq group drop orders ledgers")
def drop(
    queue: option.Queue,
    group: Group,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Drop a group, with its members, its positions, and its dead and delayed messages."""
    with client(database) as trunq:
        row = next((each for each in trunq.list_groups(queue) if each.group_name == group), None)
        if row is None:
            raise Mistake(f"Queue {queue} has no group {group}. Those there are: trunq group list {queue}")
        pending = display.counted(row.pending, "message")
        confirm(f"Group {group} of {queue}, with {pending} pending: end it?", is_answered=yes)
        trunq.drop_group(queue, group)
    if json:
        write_json({"queue": queue, "group": group, "dropped": True})
    else:
        say("Queue {queue} has no group {group} any more.", queue=queue, group=group)
