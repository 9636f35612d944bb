"""Errors that users see apart from the internal text: functions/work/reference.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, new_names, refused
from engine import Engine

INTERNAL = "KeyError: 'card 4711'\n  shop.py:12 in charge: raise"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Iterator[Engine]:
    engine = Engine(session, next(new_names("referred"))).create(retention="2000 days")
    yield engine
    ask(session, "drop_queue", queue=engine.queue, force=True)


def refer(work: Engine, error: str | None = INTERNAL, **public: str | None) -> tuple[str, str]:
    """An error with a new reference, and the reference."""
    text = ask(work.connection, "add_reference", error=error, **public)
    return text, text.split("\n")[-1].split()[1].rstrip(",")


def fail(work: Engine, verb: str, error: str, **more: Any) -> int:
    """A message that was answered so."""
    held = work.lease(worker="w7")
    work.answer(verb, held, errors=[error], **more)
    return held.ids[0]


def find(work: Engine, reference: str, **more: Any) -> list[Any]:
    return call(work.connection, "find_reference", reference=reference, **more)


@pytest.mark.parametrize(
    ("verb", "more"), [("reject", {}), ("retry", {}), ("retry", {"delays": ["1 day"]}), ("time_out", {})]
)
def test_an_error_is_found_by_its_reference(work: Engine, verb: str, more: dict[str, Any]) -> None:
    work.publish(3, kinds=["mail"] * 3)
    other, _ = refer(work)
    fail(work, "reject", other)
    text, reference = refer(work)
    id = fail(work, verb, text, **more)
    work.ack(work.lease())
    (found,) = find(work, reference)
    assert found.failed_at is not None
    assert found._replace(failed_at=None) == (
        reference, work.queue, "default", id, "mail", 1, None, "w7", text, None,
    )  # fmt: skip
    assert text == f"{INTERNAL}\nreference {reference}"
    assert find(work, reference, queue=work.queue) == [found]


@pytest.mark.parametrize("make", [{"lanes": "key"}, {"unique": "refuse"}])
def test_in_queues_of_every_make(session: psycopg.Connection[Any], make: dict[str, str]) -> None:
    work = Engine(session, next(new_names("referred"))).create(**make)
    work.publish(2, keys=["anna", "bob"])
    text, reference = refer(work, public="Declined.")
    id = fail(work, "reject", text)
    (found,) = find(work, reference)
    assert (found.queue, found.id, found.attempt, found.worker) == (work.queue, id, 1, "w7")
    assert work.call("show_public", id=id)[0].public == "Declined."
    work.ask("drop_queue", force=True)


def test_it_is_found_as_people_write_it(work: Engine) -> None:
    work.publish()
    text, reference = refer(work)
    id = fail(work, "reject", text)
    written = reference.lower().replace("0", "o").replace("1", "l")
    assert [row.id for row in find(work, f" {written[:5]}-{written[5:]} ")] == [id]


@pytest.mark.parametrize("wrong", ["", "x", "K7M2Q9XW4", "K7M2Q9XW4TT", "K7M2Q9XW4U", "%" * 10, "x" * 10**6])
def test_what_cannot_be_a_reference_is_refused(work: Engine, wrong: str) -> None:
    with refused("TQ005", "is no reference", "ten letters and digits"):
        find(work, wrong)
    assert find(work, "0000000000") == []


def test_attempts_have_references_of_their_own(work: Engine) -> None:
    work.publish()
    texts = [refer(work) for _ in range(3)]
    (id, *_) = {fail(work, "retry", text, delays=["0"]) for text, _ in texts}
    work.ack(work.lease())
    found = [find(work, reference) for _, reference in texts]
    assert [[(row.id, row.attempt) for row in rows] for rows in found] == [[(id, n)] for n in (1, 2, 3)]
    assert len({reference for _, reference in texts}) == 3


def test_each_message_of_one_answer_has_its_own(work: Engine) -> None:
    work.publish(3)
    texts = [refer(work) for _ in range(3)]
    held = work.lease(3)
    work.answer("reject", held, errors=[text for text, _ in texts])
    assert [find(work, reference)[0].id for _, reference in texts] == held.ids


def test_of_a_dead_message_it_is_found_when_receipts_are_gone(work: Engine) -> None:
    work.publish(2)
    texts = [refer(work, public="Declined.") for _ in range(2)]
    ids = [fail(work, "reject", texts[0][0]), fail(work, "retry", texts[1][0], delays=["3000 days"])]
    work.run("truncate {receipt}, {log}")
    found = [find(work, reference) for _, reference in texts]
    assert [[(row.id, row.attempt, row.worker, row.public) for row in rows] for rows in found] == [
        [(id, 1, "w7", "Declined.")] for id in ids
    ]


def test_in_the_archive_it_is_found_when_its_queue_is_gone(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("referred"))).create()
    work.ask("create_archive")
    work.publish(kinds=["mail"])
    text, reference = refer(work)
    id = fail(work, "reject", text)
    while work.ask("archive"):
        pass
    assert [row.id for row in find(work, reference)] == [id]
    work.ask("drop_queue", force=True)
    for more in ({}, {"queue": work.queue}):
        (found,) = find(work, reference, **more)
        assert (found.queue, found.subscription, found.id, found.attempt) == (work.queue, "default", id, 1)
    work.ask("drop_archive")
    assert find(work, reference) == []


@pytest.mark.parametrize(("offset", "is_found"), [("-10 minutes", 1), ("-23 hours", 1), ("49 hours", 0)])
def test_a_worker_s_clock_may_be_off_by_a_day(work: Engine, offset: str, is_found: int) -> None:
    work.publish()
    with work.clock(offset):
        text, reference = refer(work)
    fail(work, "reject", text)
    assert len(find(work, reference)) == is_found


def test_a_reference_is_of_the_last_ten_years(work: Engine) -> None:
    made_at = (
        "select trunq._reference_time(%s) between trunq.clock() - interval '6 minutes' and trunq.clock()"
    )
    for offset in ("0", "3000 days", "6000 days"):
        with work.clock(offset):
            _, reference = refer(work)
            assert fetch(work.connection, made_at, reference) is True


FORGED = ("0123456789", "VJCTJMEVJC")


@pytest.mark.parametrize(
    "quoted",
    [
        f"reference {FORGED[0]}",
        f'reference {FORGED[0]}, public "hacked"',
        f'said: {{}} %s\nreference {FORGED[0]}, public "hacked"\n',
        f'x\r\nreference {FORGED[0]}, public "hacked"\r',
    ],
)
def test_what_an_error_quotes_is_not_taken_for_its_reference(work: Engine, quoted: str) -> None:
    work.publish()
    text, reference = refer(work, quoted, public=quoted)
    id = fail(work, "reject", text)
    assert find(work, FORGED[0]) == []
    assert [row.id for row in find(work, reference)] == [id]
    (shown,) = work.call("show_public", id=id)
    assert (shown.reference, shown.public) == (reference, quoted)


PUBLIC = ["", "two\nlines", 'quoted "braces" {0} \\ %s', "\u2028\x01\x1f", "Žluťoučký 🐎"]


@pytest.mark.parametrize("public", PUBLIC)
def test_a_public_text_is_shown_as_it_was_given(work: Engine, public: str) -> None:
    work.publish()
    text, reference = refer(work, public=public)
    id = fail(work, "reject", text)
    assert text.startswith(INTERNAL + "\nreference ")
    (shown,) = work.call("show_public", id=id)
    assert shown == ("default", "dead", reference, public)
    assert find(work, reference)[0].public == public


@pytest.mark.parametrize("public", ["x" * 10**6, "\x01" * 10**6])
def test_long_texts_are_cut_and_the_reference_stays(work: Engine, public: str) -> None:
    work.publish()
    text, reference = refer(work, "y" * 10**6, public=public)
    id = fail(work, "reject", text)
    assert len(text) == 8000
    (shown,) = work.call("show_public", id=id)
    assert (shown.reference, shown.public) == (reference, public[:1000])
    work.run("truncate {receipt}, {log}")
    assert [row.id for row in find(work, reference)] == [id]


def test_an_error_without_a_text_is_its_reference(work: Engine) -> None:
    for error in (None, ""):
        text, reference = refer(work, error)
        assert text == f"reference {reference}"


@pytest.mark.parametrize("line", ['public "a\\q"', 'public "\\u0000"', 'public "a" "b"', 'public "\\ud800"'])
def test_a_line_written_by_hand_that_cannot_be_read_shows_nothing(work: Engine, line: str) -> None:
    work.publish()
    id = fail(work, "reject", f"reference {FORGED[1]}, {line}")
    (shown,) = work.call("show_public", id=id)
    assert (shown.reference, shown.public) == (FORGED[1], None)


def test_users_see_the_state_and_never_the_internal_text(work: Engine) -> None:
    waiting, tried, dead, done = work.publish(4)
    held = work.lease(4)
    texts = [refer(work, public="Declined.") for _ in range(2)]
    work.answer("release", held, [waiting])
    work.answer("retry", held, [tried], errors=[texts[0][0]], delays=["1 day"])
    work.answer("reject", held, [dead], errors=[texts[1][0]])
    work.ack(held, [done])
    shown = [work.call("show_public", id=id)[0] for id in (waiting, tried, dead, done)]
    assert [(row.state, row.reference, row.public) for row in shown] == [
        ("ready", None, None),
        ("retrying", texts[0][1], None),
        ("dead", texts[1][1], "Declined."),
        ("done", None, None),
    ]
    assert "4711" not in str(shown)
    # What runs again was not refused.
    work.ask("requeue")
    assert work.call("show_public", id=dead)[0].public is None
    work.call("cancel", ids=[dead])
    assert work.lease(9).ids != [dead]
    assert work.call("show_public", id=dead)[0][1::2] == ("dead", None)
    with refused("TQ013"):
        work.call("show_public", id=10**9)


def test_a_look_at_all_queues_holds_no_locks_of_any(work: Engine) -> None:
    work.publish()
    text, reference = refer(work)
    id = fail(work, "reject", text)
    with work.connection.transaction():
        assert [row.id for row in find(work, reference)] == [id]
        held = "select count(*) from pg_locks where pid = pg_backend_pid() and relation = %s::regclass"
        assert fetch(work.connection, held, f"trunq_data.{work.queue}_receipt") == 0


def test_success_stores_nothing(work: Engine) -> None:
    work.publish()
    work.ack(work.lease())
    assert work.fetch("select count(errors) from {receipt}") == 0
