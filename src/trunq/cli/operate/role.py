"""trunq role: grant, revoke, list."""

from __future__ import annotations

from typing import Annotated

import typer

from trunq import Client, display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import say, write_json, write_rows
from trunq.diagnosis import rights
from trunq.word import RoleName

app = option.noun(
    "Roles of a queue, for database roles that are there: grant, revoke, list.",
    "trunq role grant orders publisher shop_web",
    "trunq role grant orders worker shop_worker",
    "trunq role list orders",
    "trunq role revoke orders publisher shop_web",
)

_SEEN = """
select count(*), count(*) filter (where trunq._door(q.name, trunq._doors_to('status')) is not null)
from trunq.queue q
"""

COLUMNS = ("queue", "role", "grantee", "payload")

Kind = Annotated[
    RoleName,
    typer.Argument(metavar="ROLE", help="What it may do: publisher, worker, reader or admin."),
]
Grantee = Annotated[str, typer.Argument(metavar="GRANTEE", help="Name of the database role (create role).")]


@option.verb(
    app,
    "grant",
    "trunq role grant orders worker shop_worker",
    "# Somebody who looks at messages, and sees what is in them",
    "trunq role grant orders reader ada --payload",
)
def grant(
    queue: option.Queue,
    role: Kind,
    grantee: Grantee,
    payload: Annotated[
        bool, typer.Option("--payload", help="A reader sees payloads, headers and results.")
    ] = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Let a database role act as publisher, worker, reader or admin of a queue, and no more.

    The database role must exist (create role). Only the owner of trunq can lead (trunq leader), create,
    drop and grant.
    """
    with client(database) as trunq:
        trunq.grant_role(queue, role, grantee, payload=payload)
    if json:
        write_json({"queue": queue, "role": role, "grantee": grantee, "payload": payload})
    else:
        say("{grantee} has the role {role} of queue {queue}.", grantee=grantee, role=role, queue=queue)


@option.verb(app, "revoke", "trunq role revoke orders worker shop_worker")
def revoke(
    queue: option.Queue,
    role: Kind,
    grantee: Grantee,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Take a role of a queue away from a database role.

    Roles that it has as a member of another database role stay.
    """
    with client(database) as trunq:
        revoked = trunq.revoke_role(queue, role, grantee)
    if json:
        write_json({"queue": queue, "role": role, "grantee": grantee, "revoked": revoked})
    elif revoked:
        say(
            "{grantee} has the role {role} of queue {queue} no more.", grantee=grantee, role=role, queue=queue
        )
    else:
        say(
            "{grantee} did not have the role {role} of queue {queue}.",
            grantee=grantee,
            role=role,
            queue=queue,
        )


@option.verb(app, "list", "trunq role list", "trunq role list orders --json")
def list_roles(
    queue: option.OneQueue = None, *, database: option.Database, json: option.Json = False
) -> None:
    """List which database role has which role of which queue, as granted.

    Members of a database role have its roles too. `payload` says whether a reader sees payloads.
    """
    with client(database) as trunq:
        rows = [role._asdict() for role in trunq.list_roles(queue)]
    write_rows(rows, COLUMNS, json, "No roles are granted.")


def unseen(trunq: Client, queue: str | None = None) -> str | None:
    """What the role does not see, and which grant shows it; None: it sees all."""
    with trunq.transaction() as connection:
        held = rights(connection)
        if held is None or held.owns or queue is not None:
            return None
        many, seen = connection.execute(_SEEN).fetchone() or (0, 0)
    if seen == many:
        return f"? This role sees no warnings of the whole database: {held.grant} shows them"
    sees = display.counted(seen, "queue") if seen else "no queue"
    return (
        f"? This role sees {sees} of {many:,}, and no warnings of the whole database: {held.grant} shows all,"
        f" trunq role grant QUEUE reader {held.role} one queue more"
    )
