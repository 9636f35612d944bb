"""The same calls to two servers: PgQ's own answers were recorded, and the facade has to give them too.

A chapter, `facade/calls/NAME.sql`, is a list of calls, a blank line between two. `-- in b` above one sends it
through a second session, `-- quiet` waits until no other transaction is open, and the lines below a `copy`
are its data. The chapters `trigger_FORMAT` are one list, `trigger.sql`, for each of PgQ's triggers.
`facade/answers/NAME.json` has what PgQ 3.5 on Postgres 15 says to each. To record it anew where Debian's
postgresql-15-pgq3 and postgresql-15-pgq-node are installed:

    python tests/mirroring.py [--with pgq_coop.sql] [--with pgq_ext.sql] [CHAPTER ...]

`--with` is the SQL of a part of PgQ that Debian does not package.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from waiting import wait_until

FACADE = Path(__file__).parent / "facade"
PARTS = ("pgq_coop", "pgq_ext")
"""Parts of PgQ that are packaged apart from it: chapters by these names need them."""

TRIGGERS = ("json", "logu", "sql")
"""Formats that PgQ's triggers write."""

ORIGINAL = 15
"""The version of Postgres that Debian packages PgQ for."""

NODE_SCRIPT = Path(f"/usr/share/postgresql/{ORIGINAL}/contrib/pgq_node.sql")
"""What Debian has to be run over a PgQ: its cascaded queues."""

_TIMESTAMPTZ, _SNAPSHOT = 1184, 2970
_HIDDEN = {
    "ev_txid": "<transaction>",
    "queue_switch_step1": "<transaction>",
    "queue_switch_step2": "<transaction>",
    "ev_per_sec": "<rate>",
    "lag": "<interval>",
    "last_seen": "<interval>",
    "ticker_lag": "<interval>",
}
"""Columns that differ each time."""


@dataclass(frozen=True)
class Call:
    """One call of a chapter."""

    text: str
    session: str
    quiet: bool

    @property
    def statement(self) -> str:
        """Without what is said to us."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("-- "))


def chapters() -> list[str]:
    """Names of all chapters."""
    names = {path.stem for path in (FACADE / "calls").glob("*.sql")} - {"trigger"}
    return sorted(names | {f"trigger_{format}" for format in TRIGGERS})


def calls(chapter: str) -> Iterator[Call]:
    """The calls of a chapter, in order."""
    name, _, format = chapter.partition("_") if chapter.startswith("trigger_") else (chapter, "", "")
    listed = (FACADE / "calls" / f"{name}.sql").read_text()
    if format:
        listed = listed.replace("{format}", format)
    for text in listed.strip("\n").split("\n\n"):
        lines = [line for line in text.splitlines() if line.startswith("-- ")]
        session = next((line.removeprefix("-- in ") for line in lines if line.startswith("-- in ")), "a")
        yield Call(text, session, "-- quiet" in lines)


def recorded(chapter: str) -> list[Any]:
    """PgQ's answers to a chapter."""
    answers: list[Any] = json.loads((FACADE / "answers" / f"{chapter}.json").read_text())
    return answers


def record(chapter: str, answers: list[Any]) -> None:
    """Write PgQ's answers down, a line each."""
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in answers)
    (FACADE / "answers" / f"{chapter}.json").write_text(f"[\n{lines}\n]\n")


def ask_all(dsn: str, chapter: str) -> list[Any]:
    """Send a chapter's calls to a database. Gives what it says to each, without what differs each time."""
    with ExitStack() as stack:
        sessions: dict[str, psycopg.Connection[Any]] = {}
        notices: list[str] = []
        answers = []
        for call in calls(chapter):
            if call.session not in sessions:
                opened = stack.enter_context(psycopg.connect(dsn, autocommit=True))
                opened.add_notice_handler(
                    lambda said: notices.append(f"{said.severity_nonlocalized}: {said.message_primary}")
                )
                sessions[call.session] = opened
            session = sessions[call.session]
            if call.quiet:
                wait_until(lambda session=session: _is_alone(session))
            notices.clear()
            answer = _ask(session, call.statement)
            answers.append({"call": call.text, **answer, **({"notices": list(notices)} if notices else {})})
        return answers


def differences(expected: Iterable[Any], given: Iterable[Any]) -> str:
    """What differs, to be read; empty when nothing does."""
    return "\n\n".join(
        f"{said['call']}\n   PgQ: {_show(said)}\n  here: {_show(here)}"
        for said, here in zip(expected, given, strict=True)
        if said != here
    )


def _show(answer: Any) -> str:
    return json.dumps({name: value for name, value in answer.items() if name != "call"}, ensure_ascii=False)


def _is_alone(session: psycopg.Connection[Any]) -> bool:
    """No transaction of any database is open: PgQ's rotation and its tables of a batch ask that."""
    row = session.execute(
        "select pg_snapshot_xmin(s) = pg_snapshot_xmax(s) from pg_current_snapshot() s"
    ).fetchone()
    return bool(row and row[0])


def _ask(session: psycopg.Connection[Any], statement: str) -> dict[str, Any]:
    if statement.startswith("copy "):
        return _copy(session, *statement.split("\n", 1))
    session.pgconn.send_query(statement.encode())
    results = []
    while (result := session.pgconn.get_result()) is not None:
        results.append(_read(result))
    return results[0] if len(results) == 1 else {"results": results}


def _copy(session: psycopg.Connection[Any], statement: str, data: str) -> dict[str, Any]:
    try:
        with session.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(data + "\n")
    except psycopg.Error as error:
        return {"error": [error.sqlstate, error.diag.message_primary]}
    return {"status": cursor.statusmessage}


def _read(result: Any) -> dict[str, Any]:
    if result.status == ExecStatus.TUPLES_OK:
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        rows = [
            [
                _plain(name, result.ftype(column), result.get_value(row, column))
                for column, name in enumerate(names)
            ]
            for row in range(result.ntuples)
        ]
        return {"columns": names, "rows": rows}
    if result.status == ExecStatus.COMMAND_OK:
        return {"status": (result.command_status or b"").decode()}
    sqlstate = (result.error_field(ord("C")) or b"").decode()
    return {"error": [sqlstate, (result.error_field(ord("M")) or b"").decode()]}


def _plain(name: str, type: int, value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode()
    if type == _TIMESTAMPTZ:
        return text if text < "2020" else "<time>"  # what a call gave is given back
    if type == _SNAPSHOT:
        return "<snapshot>"
    return _HIDDEN.get(name, text)


def create_original(connection: psycopg.Connection[Any], name: str, parts: Iterable[str] = ()) -> None:
    """A database with PgQ itself in it: of Debian's package, and of SQL of parts that it does not have."""
    connection.execute(f"create database {name}".encode())
    with psycopg.connect(connection.info.dsn, dbname=name, autocommit=True) as there:
        there.execute("set client_min_messages = error; create extension pgq; create extension pgq_node")
        for part in parts:
            there.execute(Path(part).read_bytes())


def has_original() -> bool:
    """Is PgQ itself installed here?"""
    return Path(f"/usr/share/postgresql/{ORIGINAL}/extension/pgq_node.control").exists()


def _main(arguments: list[str]) -> None:
    import argparse  # noqa: PLC0415

    from trunq import embedded  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("chapters", nargs="*")
    parser.add_argument("--with", dest="parts", action="append", default=[])
    options = parser.parse_args(arguments)
    with (
        embedded.start(major=ORIGINAL) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        for chapter in options.chapters or chapters():
            create_original(connection, chapter, options.parts)
            record(chapter, ask_all(f"{server.dsn}&dbname={chapter}", chapter))


if __name__ == "__main__":
    _main(sys.argv[1:])
