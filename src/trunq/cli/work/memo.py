"""trunq memo: set, get, list, delete."""

from __future__ import annotations

import json as json_library
from datetime import timedelta
from typing import Annotated, Any

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, out, say, write_json, write_rows
from trunq.wire.json import RawJson

app = option.noun(
    "Memos: small JSON values that workers keep by scope and name.",
    """trunq memo set acme cursor '{"page": 7}'""",
    "trunq memo get acme cursor",
    "trunq memo list acme",
)

COLUMNS = ("scope", "name", "value", "version", "updated_at", "expires_at")

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="A worker, a queue, a tenant: what you like.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the memo in its scope.")]
Expected = Annotated[
    int | None,
    typer.Option("--expected", min=0, help="Only if this version is there; 0: only if there is none."),
]


def _json(value: str) -> RawJson:
    try:
        json_library.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}. A text stands in quotes: '\"text\"'.") from None
    return RawJson(value)


@option.verb(
    app,
    "set",
    """trunq memo set acme cursor '{"page": 7}' --expires 30d""",
    "# Only over the version that you read",
    "trunq memo set acme cursor 8 --expected 41",
)
def set_memo(
    scope: Scope,
    name: Name,
    value: Annotated[RawJson, typer.Argument(parser=_json, metavar="VALUE", help="JSON, of at most 64 kB.")],
    expires: Annotated[
        timedelta | None,
        typer.Option(
            "--expires",
            parser=option.interval,
            metavar="INTERVAL",
            help="How long it is kept: 30s, 12h, 90d.",
        ),
    ] = None,
    expected: Expected = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Keep a small value under a scope and a name, for ever or for a time.

    Each write gives it a new version. With --expected the write fails if the memo has another version, so
    that two writers do not overwrite each other.
    """
    with client(database) as trunq:
        version = trunq.set_memo(scope, name, value, expires=expires, expected=expected)
    if version is None:
        raise Mistake(
            f"Memo {name} of {scope} has another version than {expected}: nothing was changed."
            f" Read it: trunq memo get {scope} {name}"
        )
    if json:
        write_json({"scope": scope, "name": name, "version": version})
    else:
        say("Memo {name} of {scope} is kept as version {version}.", name=name, scope=scope, version=version)


@option.verb(app, "get", "trunq memo get acme cursor", "trunq memo get acme cursor --json")
def get(scope: Scope, name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Print the value of a memo, as JSON; with --json, its version and times as well.

    It fails when there is no such memo, or its time is over.
    """
    with client(database) as trunq:
        memo = trunq.get_memo(scope, name)
    if memo is None:
        raise Mistake(f"There is no memo {name} of {scope}. Those there are: trunq memo list {scope}")
    if json:
        write_json(memo._asdict())
    else:
        out.print(_text(memo.value), markup=False)


@option.verb(app, "list", "trunq memo list", "trunq memo list acme --prefix import.")
def list_memos(
    scope: Annotated[str | None, typer.Argument(metavar="SCOPE", help="Only those of this one.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")
    ] = None,
    limit: option.Limit = 1000,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List memos by scope and name, with their versions, until when they are kept, and their values."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_memos(scope, prefix=prefix, limit=limit)]
    shown = [{**row, "value": _text(row["value"])} for row in found]
    write_rows(found if json or csv else shown, COLUMNS, json, "There are no such memos.", csv)


@option.verb(app, "delete", "trunq memo delete acme cursor", "trunq memo delete acme cursor --expected 41")
def delete(
    scope: Scope,
    name: Name,
    expected: Expected = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Delete a memo; with --expected, only that version of it, and it fails when another is there."""
    with client(database) as trunq:
        is_gone = trunq.delete_memo(scope, name, expected=expected)
    if json:
        write_json({"scope": scope, "name": name, "deleted": is_gone})
    elif is_gone:
        say("Memo {name} of {scope} is deleted.", name=name, scope=scope)
    elif expected is None:
        say("There is no memo {name} of {scope}.", name=name, scope=scope)
    if not is_gone and expected is not None:
        raise Mistake(f"Memo {name} of {scope} has another version than {expected}, or is gone.")


def _text(value: Any) -> str:
    return json_library.dumps(value, ensure_ascii=False)
