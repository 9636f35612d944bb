"""Every public function refuses what its comment says it refuses, found by reading the catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from calling import answer, ask, fetch, lease, publish, refused
from trunq import errors

Connection = psycopg.Connection[Any]

VALUES = {
    "text": "'x'",
    "text[]": "array['x']",
    "bigint": "1",
    "bigint[]": "array[1]",
    "integer": "1",
    "integer[]": "array[1]",
    "smallint": "0",
    "smallint[]": "null",
    "double precision": "null",
    "real": "0.5",
    "real[]": "array[0.5]",
    "boolean": "false",
    "interval": "null",
    "interval[]": "null",
    "jsonb": "'{}'",
    "uuid": "gen_random_uuid()",
    "jsonb[]": "array['{}']",
    "bytea": "'x'",
    "bytea[]": "null",
    "timestamp with time zone": "null",
}
"""Something for every type there is."""


@dataclass(frozen=True)
class Function:
    """A public function: its name, its parameters' types, and the codes its comment says it raises."""

    name: str
    parameters: dict[str, str]
    optional: int
    raises: frozenset[str]

    def call(self, session: Connection, **given: str | None) -> None:
        """Call it with these values, and something for each other parameter that has no default."""
        needed = list(self.parameters)[: len(self.parameters) - self.optional]
        values = {name: VALUES[self.parameters[name]] for name in needed}
        for name, value in given.items():
            if f"p_{name}" in self.parameters:
                values[f"p_{name}"] = "null" if value is None else f"'{value}'"
        arguments = ", ".join(f"{name} => {value}::{self.parameters[name]}" for name, value in values.items())
        session.execute(f"select * from trunq.{self.name}({arguments})".encode()).fetchall()


@pytest.fixture
def functions(session: Connection) -> list[Function]:
    """All public functions."""
    types = "unnest(p.proargtypes::oid[]) with ordinality u(type, at)"
    query = (
        "select p.proname, obj_description(p.oid), p.pronargdefaults, p.proargnames[:p.pronargs],"
        f" array(select format_type(type, null) from {types} order by at)"
        " from pg_proc p where p.pronamespace = 'trunq'::regnamespace and p.proname !~ '^_' order by 1"
    )
    return [
        Function(name, dict(zip(names or [], types, strict=True)), optional, codes(comment))
        for name, comment, optional, names, types in session.execute(query.encode())
    ]


def codes(comment: str | None) -> frozenset[str]:
    """SQLSTATEs after `Raises:`."""
    _, _, raises = (comment or "").partition("Raises:")
    return frozenset(re.findall(r"TQ\d{3}", raises))


def test_every_function_says_what_it_does_and_raises_only_errors_there_are(
    session: Connection, functions: list[Function]
) -> None:
    assert len(functions) > 40
    comments = "select count(*) from pg_proc where pronamespace = 'trunq'::regnamespace and proname !~ '^_'"
    assert fetch(session, f"{comments} and coalesce(obj_description(oid), '') = ''") == 0
    assert {code for function in functions for code in function.raises} <= set(errors.BY_SQLSTATE)


def test_unknown_queues(session: Connection, functions: list[Function]) -> None:
    # Of a queue that is gone there is no duty left to perform, and what was done to it can still be read.
    others = {"create_queue", "perform_duty", "list_audit", "list_sweeps"}
    asked = [each for each in functions if "p_queue" in each.parameters and each.name not in others]
    assert len(asked) > 30
    for function in asked:
        assert "TQ001" in function.raises, function.name
        with refused("TQ001", '"no_such_queue"', "trunq.create_queue"):
            function.call(session, queue="no_such_queue")


def test_unknown_subscriptions(session: Connection, queue: str, functions: list[Function]) -> None:
    # Those that take several have cases of their own.
    asked = [
        each for each in functions if "TQ002" in each.raises and "p_subscriptions" not in each.parameters
    ]
    assert len(asked) > 15
    for function in asked:
        maker = "trunq.create_group" if "p_group" in function.parameters else "trunq.subscribe"
        with refused("TQ002", '"nobody"', queue, maker):
            function.call(session, queue=queue, subscription="nobody", group="nobody")


def test_subscriptions_of_the_other_mode(session: Connection, queue: str, functions: list[Function]) -> None:
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    makers = ("subscribe", "create_group")
    asked = [
        each
        for each in functions
        if "TQ011" in each.raises and each.name not in makers and "p_subscriptions" not in each.parameters
    ]
    assert len(asked) > 10
    for function in asked:
        wrong = []
        for name in ("default", "stream"):
            try:
                function.call(session, queue=queue, subscription=name)
            except psycopg.Error as error:
                if error.sqlstate == "TQ011":
                    wrong.append(name)
        assert len(wrong) == 1, f"{function.name} is for {2 - len(wrong)} modes"


def test_isolation_levels(session: Connection, queue: str, functions: list[Function]) -> None:
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    asked = [each for each in functions if "TQ007" in each.raises]
    assert {"lease", "reap", "rotate", "tick", "next_batch", "rebase"} <= {each.name for each in asked}
    for function in asked:
        for level in ("repeatable read", "serializable"):
            for subscription in ("default", "stream"):
                with refused_somehow() as states, session.transaction():
                    session.execute(f"set transaction isolation level {level}".encode())
                    function.call(session, queue=queue, subscription=subscription)
                if states != ["TQ011"]:
                    assert states == ["TQ007"], f"{function.name} at {level}: {states}"


class refused_somehow:  # noqa: N801  # a context manager, used like a function
    """Collects the SQLSTATE of what fails in here."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def __enter__(self) -> list[str]:
        return self.states

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, psycopg.Error):
            self.states.append(error.sqlstate or "")
            return True
        return False


def test_functions_need_no_search_path(session: Connection, queue: str) -> None:
    session.execute("set search_path = ''")
    publish(session, queue, 2)
    for function, arguments in {
        "tick": {"force": True},
        "promote": {},
        "reap": {},
        "rotate": {},
        "summarize": {},
        "status": {},
        "list_messages": {},
        "show_message": {"id": 1},
        "take_bell": {},
        "subscribe": {"subscription": "s"},
    }.items():
        named = ", ".join(f"p_{name} => '{value}'" for name, value in {"queue": queue, **arguments}.items())
        session.execute(f"select * from trunq.{function}({named})".encode())
    held = lease(session, queue, 9)
    assert answer(session, "retry", held) == len(held.ids) == 2
    assert fetch(session, "select current_setting('search_path')") == '""'
