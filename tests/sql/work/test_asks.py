"""What is known of asks: refusals, warnings, the calls that wake, keys, lanes. functions/work/ask.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from conftest import Connect
from engine import Engine
from keying import is_free, take

Connection = psycopg.Connection[Any]
MAIL, FAX, TEXT = {"kinds": ["mail"]}, {"kinds": ["fax"]}, {"kinds": ["text"]}
ASKS = "from trunq.ask join trunq.subscription using (subscription_id) where queue_id = {id}"


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def publish(engine: Engine, *kinds: str, **more: Any) -> list[int]:
    return engine.publish(len(kinds), kinds=list(kinds), **more)


def warnings(engine: Engine) -> list[tuple[str, str]]:
    return [(row.warning, row.hint) for row in engine.call("list_warnings") if "asks" in row.warning]


def asks_known(engine: Engine) -> bool:
    return bool(engine.fetch("select has_asks from trunq.subscription where queue_id = {id}"))


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ("[]", ["a JSON object, not array", '{"kinds": ["mail"]']),
        ("null", ["a JSON object, not null"]),
        ('{"kind": "mail"}', ['has no "kind"']),
        ('{"kinds": "mail"}', ["an array of texts"]),
        ('{"key_prefix": 1}', ["a text of 1 to 1,000 bytes, not 1", "leave it out"]),
        ('{"key_prefix": ""}', ["a text of 1 to 1,000 bytes"]),
        ('{"key_prefix": null}', ["a text of 1 to 1,000 bytes, not null"]),
        (f'{{"key_prefix": "{"x" * 1001}"}}', ["a text of 1 to 1,000 bytes"]),
        ('{"headers": []}', ["an object of headers"]),
        ('{"slots": 2, "slot": 1}', ["has no"]),
    ],
)
def test_what_cannot_be_asked_for_is_refused(engine: Engine, asks: str, words: list[str]) -> None:
    with refused("TQ005", *words):
        engine.call("lease", subscription="default", worker="w", asks=asks)
    assert not asks_known(engine)


def test_streams_hand_out_batches(engine: Engine) -> None:
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    with refused("TQ011"):
        engine.lease(subscription="stream", asks=MAIL)
    with refused("TQ002"):
        engine.lease(subscription="nobody", asks=MAIL)


def test_a_filter_of_a_subscription_does_not_know_key_prefixes(engine: Engine) -> None:
    with refused("TQ005", "key_prefix"):
        engine.ask("subscribe", subscription="eu", filter={"key_prefix": "eu-"})


@pytest.mark.parametrize("lanes", ["key", "priority"])
def test_lanes_say_themselves_what_comes_next(session: Connection, lanes: str) -> None:
    engine = Engine(session, next(new_names("asked_lanes"))).create(lanes=lanes)
    publish(engine, "fax", "mail")
    with refused("TQ005", "has lanes", "p_filter"):
        engine.lease(asks=MAIL)
    with refused("TQ005", "an array of texts"):
        engine.lease(asks={"kinds": 1})
    # The way out.
    engine.ask("subscribe", subscription="mail", start="earliest", filter=MAIL)
    assert len(engine.lease(5, subscription="mail").ids) == 1


def test_what_is_set_aside_goes_into_the_lanes_that_a_queue_gets(session: Connection) -> None:
    engine = Engine(session, next(new_names("asked_converted"))).create()
    ids = publish(engine, "fax", "mail", "fax")
    assert not engine.lease(asks=TEXT)
    assert engine.ask("convert_queue", lanes="kind", at_once=True) is True
    assert not asks_known(engine)
    assert engine.ask("promote") == 3
    assert sorted(engine.drain()) == ids
    assert {engine.state(id) for id in ids} == {"done"}


def test_a_queue_gets_unique_keys_while_something_is_set_aside(session: Connection) -> None:
    engine = Engine(session, next(new_names("asked_keyed"))).create()
    (id,) = publish(engine, "fax")
    assert not engine.lease(asks=TEXT)
    assert engine.ask("convert_queue", unique="refuse") is True
    other, _ = take(engine, "k", kind="fax")
    assert engine.lease(10, asks=FAX).ids == [id]
    assert engine.lease(10, asks=FAX).ids == [other]


@pytest.mark.parametrize("until", ["leased", "done"])
def test_it_holds_its_unique_key(session: Connection, until: str) -> None:
    engine = Engine(session, next(new_names("asked_unique"))).create(unique="refuse")
    id, _ = take(engine, "k", kind="fax", unique_until=until)
    assert not engine.lease(asks=MAIL)
    engine.ask("forget")
    assert not is_free(engine)
    held = engine.lease(asks=FAX)
    assert held.ids == [id]
    assert is_free(engine) is (until == "leased")
    engine.ack(held)
    assert is_free(engine)


def test_a_newer_one_stands_for_it(session: Connection) -> None:
    engine = Engine(session, next(new_names("asked_replace"))).create(unique="replace")
    old, _ = take(engine, "k", kind="fax")
    assert not engine.lease(asks=MAIL)
    new, _ = take(engine, "k", kind="fax")
    assert engine.lease(10, asks=FAX).ids == [new]
    assert engine.state(old) == "replaced"
    assert not engine.lease()


def test_content_that_is_unique_stays_so(session: Connection) -> None:
    engine = Engine(session, next(new_names("asked_content"))).create(unique="refuse", unique_on="content")
    (id,) = publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    with refused("TQ015"):
        publish(engine, "fax")
    engine.ack(engine.lease(asks=FAX))
    assert engine.state(id) == "done"
    publish(engine, "fax")


def test_what_nobody_asks_for_is_warned_of_and_the_hint_helps(engine: Engine) -> None:
    publish(engine, "fax", "fax", "mail", "text")
    engine.ack(engine.lease(10, asks=MAIL))
    assert warnings(engine) == []
    with engine.clock("2 minutes"):
        ((warning, hint),) = warnings(engine)
        assert "no worker asks for 3 messages" in warning
        assert f'"default" of queue "{engine.queue}"' in warning
        assert "kind fax" in warning
        assert f"--queue {engine.queue} --subscription default, or for these, --kind 'fax'" in hint
        statement = hint.partition("or lease: ")[2]
        assert len(engine.run(statement.replace("{", "{{")).fetchall()) == 1
        # A lease of everything asks for all of them.
        assert warnings(engine) == []
    with engine.clock("20 minutes"):
        ((warning, hint),) = warnings(engine)
        assert "no worker asks for 2 messages" in warning
        assert engine.lease(asks=TEXT)
        assert engine.lease(asks=FAX)
        assert warnings(engine) == []


def test_what_is_asked_for_and_waits_is_no_warning(engine: Engine) -> None:
    publish(engine, "fax", "fax", "mail")
    assert engine.lease(asks=FAX)
    assert engine.lease(asks=MAIL)
    publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL)
    with engine.clock("3 minutes"):
        assert warnings(engine) == []
    with engine.clock("15 minutes"):
        assert len(warnings(engine)) == 1


def test_a_message_without_kind_and_key_is_named_so(engine: Engine) -> None:
    engine.publish()
    assert not engine.lease(asks=MAIL)
    with engine.clock("2 minutes"):
        ((warning, hint),) = warnings(engine)
    assert warning.endswith(": no kind")
    assert "--kind" not in hint


def test_a_subscription_of_which_nobody_asks_for_a_part_forgets_it_after_a_day(engine: Engine) -> None:
    publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    assert asks_known(engine)
    with engine.clock("2 days"):
        engine.ask("forget")
        assert asks_known(engine)
        assert engine.lease()
        engine.ask("forget")
        assert not asks_known(engine)
        assert engine.fetch(f"select count(*) {ASKS}") == 0


def test_there_are_a_hundred_different_asks_within_an_hour(engine: Engine) -> None:
    for n in range(100):
        engine.lease(asks={"kinds": [f"kind-{n}"]})
    with refused("TQ005", "100 different parts", "ask for everything"):
        engine.lease(asks=MAIL)
    engine.lease(asks={"kinds": ["kind-1"]})
    publish(engine, "mail")
    assert engine.lease()
    with engine.clock("2 hours"):
        assert not engine.lease(asks=MAIL)


def test_an_ask_looks_at_each_message_once(engine: Engine) -> None:
    """Though its mark is written only now and then."""
    ids = engine.publish(1200, kinds=["fax"])
    late = publish(engine, "mail")
    assert not engine.lease(asks=TEXT)
    assert engine.lease(asks=MAIL).ids == late
    mark = (
        "select looked - (select min(aside) from trunq.delayed where queue_id = {id})"
        f" {ASKS} and asks->'kinds'->>0 = 'mail'"
    )
    assert engine.fetch(mark) == 1200
    assert engine.lease(1000, asks=FAX).ids == ids[:1000]
    assert engine.lease(1000, asks=FAX).ids == ids[1000:]
    assert engine.status()[3:5] == (0, 1201)


def test_thousands_that_are_set_aside_are_counted_and_looked_at_in_steps(engine: Engine) -> None:
    ids = engine.publish(12_000, kinds=["fax"])
    late = publish(engine, "mail")
    assert engine.lease(asks=MAIL).ids == late
    row = engine.status()
    assert row.ready == pytest.approx(12_000, rel=0.5)
    assert set(row.estimated) == {"ready"} | set(row.estimated)
    assert not engine.lease(asks=TEXT)
    assert len(engine.lease(10_000, asks=FAX).ids) == 10_000
    assert engine.lease(10_000, asks=FAX).ids == ids[10_000:]


def heard(connection: Connection) -> list[str]:
    return [each.payload for each in connection.notifies(timeout=0.2)]


@pytest.fixture
def listener(engine: Engine, open_session: Connect) -> Connection:
    connection = open_session()
    channel = engine.ask("queue_channel")
    connection.execute(f"listen {channel}".encode())
    return connection


def test_who_sets_something_aside_calls_whoever_waits_for_it(engine: Engine, listener: Connection) -> None:
    assert not engine.lease(asks=FAX)
    assert heard(listener) == ["look"]  # the first ask of all: others tell what they ask for
    assert not engine.lease(asks=TEXT)
    publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL)
    assert heard(listener) == ["look"]
    publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL)
    assert heard(listener) == []  # called already, and has not been there
    assert len(engine.lease(5, asks=FAX).ids) == 2
    publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL)
    assert heard(listener) == []  # it works, and asks again
    assert engine.lease(asks=FAX)
    assert not engine.lease(asks=FAX)
    publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL)
    assert heard(listener) == ["look"]


def test_who_takes_what_is_set_aside_rings_for_nobody(engine: Engine, listener: Connection) -> None:
    publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    heard(listener)
    engine.ask("take_bell")
    other = engine.on(engine.connection)
    assert other.lease(asks=FAX)
    assert heard(listener) == []
    assert engine.fetch("select current_setting('trunq.notify', true)") in (None, "")
    engine.ask("give_bell")


def test_a_full_queue_counts_what_is_set_aside(engine: Engine, open_session: Connect) -> None:
    publish(engine, "fax", "fax")
    assert not engine.lease(asks=MAIL)
    engine.ask("set_publishing", max_waiting=2)
    with refused("TQ014"):
        publish(engine.on(open_session()), "fax")


def test_what_is_left_is_told_to_who_asks(engine: Engine) -> None:
    def left(asks: dict[str, Any]) -> int:
        return int(engine.ask("_left_asked", subscription="default", asks=asks))

    publish(engine, "fax", "fax", "mail")
    assert left(TEXT) == 3  # nobody has looked at them
    held = engine.lease(asks=MAIL)
    assert (left(FAX), left(MAIL), left(TEXT)) == (2, 1, 0)
    fax = engine.lease(asks=FAX)
    assert (left(FAX), left(MAIL), left(TEXT)) == (1, 1, 0)
    engine.ack(held)
    assert left(MAIL) == 0
    engine.answer("retry", fax, delays=["1 hour"])
    more = {"subscription": "default"}
    assert engine.ask("_has_delayed", **more, asks=FAX) is True
    assert engine.ask("_has_delayed", **more, asks=MAIL) is False
    engine.ack(engine.lease(asks=FAX))
    assert left(FAX) == 0
