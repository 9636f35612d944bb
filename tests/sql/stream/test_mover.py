"""What a mover asks of its two databases, call by call."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, take


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one stream reads, which gives nothing up."""
    work = Engine(session, next(new_names("moved")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=0)
    return work


def start(work: Engine, **more: Any) -> int:
    return int(work.ask("start_mover", **LAKE, **{"worker": "ada", "definition": {"to": "x"}, **more}))


def begin(work: Engine, batch: Any) -> Any:
    (move,) = work.call("begin_move", **named(batch))
    return move


def receive(work: Engine, move: Any, **more: Any) -> bool:
    given = {"from": Jsonb(move.from_place), "to": Jsonb(move.to_place), "moved": move.moved_place}
    if given["moved"] is not None:
        given["moved"] = Jsonb(given["moved"])
    return bool(
        ask(
            work.connection,
            "receive",
            source=move.source,
            subscription_id=move.subscription_id,
            **given,
            **more,
        )
    )


def moved(work: Engine, **more: Any) -> Any:
    """Take a batch, have it received, and finish it."""
    batch = take(work, **more)
    move = begin(work, batch)
    assert receive(work, move)
    assert work.ask("finish_move", **named(batch), messages=5)
    return move


def test_a_batch_is_new_once_and_the_next_one_follows(work: Engine) -> None:
    put_batches(work, 2)
    start(work)
    batch = take(work)
    first = begin(work, batch)
    assert first.moved_place is None
    assert receive(work, first)
    # As by one who died before it was finished.
    assert not receive(work, begin(work, batch))
    assert work.ask("finish_move", **named(batch), messages=5)
    assert not work.ask("finish_move", **named(batch), messages=5)
    second = moved(work)
    assert second.from_place == first.to_place == second.moved_place
    (row,) = work.call("list_movers")
    assert (row.worker, row.batches, row.messages, row.pending) == ("ada", 2, 10, 0)


def test_parts_of_a_batch_follow_each_other_and_a_part_of_what_is_here_is_not_new(work: Engine) -> None:
    (batch_ids,) = put_batches(work, 1)
    start(work)
    batch = take(work)
    whole = begin(work, batch)
    third = read(work, batch)[2]
    work.ask("finish_batch", **named(batch), upto_txid=third.txid, upto_id=third.id)
    rest = take(work)
    part = begin(work, rest)
    assert (part.from_place["id"], part.to_place) == (third.id, whole.to_place)
    assert ids(read(work, rest)) == batch_ids[3:]
    assert receive(work, whole)
    assert not receive(work, part)


@pytest.mark.parametrize("place", ["back", "on"])
def test_a_stream_that_was_moved_is_refused_until_that_is_accepted(work: Engine, place: str) -> None:
    put_batches(work, 2)
    start(work)
    first = moved(work)
    put_batches(work, 1)
    work.ask("seek", **LAKE, start="earliest" if place == "back" else "latest")
    put_batches(work, 1)
    move = begin(work, take(work, max_ticks=9))
    told = f"tick {first.to_place['tick_id']} "
    with refused("TQ028", told, "p_accept"):
        receive(work, move)
    assert receive(work, move, accept=True)
    assert not receive(work, move, accept=True)


def test_a_snapshot_that_differs_at_the_same_tick_is_refused(work: Engine) -> None:
    """As after a restore: numbers of ticks come again, and have other messages between them."""
    put_batches(work, 2)
    start(work)
    moved(work)
    move = begin(work, take(work))
    other = move._replace(from_place={**move.from_place, "snapshot": "7:9:8"})
    with refused("TQ028", "7:9:8"):
        receive(work, other)


def test_a_target_that_has_nothing_of_a_moved_stream_is_refused(work: Engine) -> None:
    put_batches(work, 2)
    start(work)
    move = moved(work)
    work.connection.execute("delete from trunq.received where source = %s", (move.source,))
    again = begin(work, take(work))
    with refused("TQ028", "received nothing", "p_accept"):
        receive(work, again)
    assert receive(work, again, accept=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"tick_id": 1},
        {"tick_id": "1", "snapshot": "1:1:", "txid": 0, "id": 0},
        {"tick_id": 1, "snapshot": "1:1:", "txid": 0.5, "id": 0},
        {"tick_id": 1, "snapshot": "1:1:", "txid": 0, "id": 10**30},
    ],
)
def test_what_is_no_place_is_refused(work: Engine, wrong: dict[str, Any]) -> None:
    with refused("TQ005", "place"):
        call(
            work.connection,
            "receive",
            source="s",
            subscription_id=1,
            **{"from": Jsonb(wrong)},
            to=Jsonb(wrong),
        )


def test_one_that_gives_messages_up_cannot_be_moved(work: Engine) -> None:
    work.ask("subscribe", subscription="short", mode="exclusive", max_attempts=3)
    with refused("TQ005", "after 3 attempts", "p_max_attempts => 0"):
        work.ask("start_mover", subscription="short", worker="ada", definition={})
    work.ask("create_group", group="team")
    with refused("TQ011", "is a group"):
        work.ask("start_mover", subscription="team", worker="ada", definition={})
    with refused("TQ005", "gave none"):
        start(work, worker="")


def test_what_the_other_database_goes_by_is_on_disk_before(work: Engine, open_session: Connect) -> None:
    put_batches(work, 1)
    start(work)
    batch = take(work)
    late = work.on(open_session(autocommit=False))
    late.connection.execute("set synchronous_commit = off")
    late.connection.commit()
    for step in (partial(begin, late, batch), partial(receive, late, begin(work, batch))):
        step()
        # Only a commit that writes waits for the disk.
        assert late.fetch("select pg_current_xact_id_if_assigned() is not null")
        assert late.fetch("select current_setting('synchronous_commit')") == "on"
        late.connection.commit()
        assert late.fetch("select current_setting('synchronous_commit')") == "off"
        late.connection.rollback()


def test_a_failed_move_is_told_until_one_succeeds(work: Engine) -> None:
    put_batches(work, 1)
    start(work)
    batch = take(work)
    work.ask("fail_move", **named(batch), error="the target is full", after="0 s")
    (row,) = work.call("list_movers")
    assert (row.error, row.failed_at is None) == ("the target is full", False)
    moved(work)
    (row,) = work.call("list_movers")
    assert (row.error, row.failed_at) == (None, None)


def test_one_is_asked_to_stop_and_the_next_one_is_not(work: Engine) -> None:
    with refused("TQ002", "nobody moves", "list_movers"):
        work.ask("stop_mover", **LAKE)
    found = start(work)
    assert work.ask("stop_mover", **LAKE)
    assert work.ask("_mover_stops", **LAKE) > found
    assert work.call("list_movers")[0].stopping
    assert start(work, worker="eve") == found + 1
    assert not work.call("list_movers")[0].stopping
    # The first ends by now: the second goes on.
    assert not work.ask("end_mover", **LAKE, worker="ada")
    assert work.ask("end_mover", **LAKE, worker="eve")
    assert not work.ask("stop_mover", **LAKE)


def test_a_stream_that_is_reset_is_moved_on_when_somebody_accepts_that(work: Engine) -> None:
    put_batches(work, 1)
    start(work)
    moved(work)
    work.ask("reset", **LAKE, start="earliest")
    move = begin(work, take(work))
    with refused("TQ028", "p_accept"):
        receive(work, move)
    assert receive(work, move, accept=True)


def test_a_position_is_copied_exactly(work: Engine) -> None:
    batches = put_batches(work, 2)
    work.ask("subscribe", subscription="copy", mode="exclusive")
    work.ask("finish_batch", **named(take(work)))
    assert work.ask("copy_position", subscription="copy", like="lake") == work.ask("position", **LAKE)
    batch, other = take(work), take(work, subscription="copy")
    assert (other.from_snapshot, other.from_tick_id) == (batch.from_snapshot, batch.from_tick_id)
    assert ids(work.call("read_batch", subscription="copy", batch_id=other.batch_id)) == batches[1]
    work.ask("finish_batch", **named(batch))
    for pair in ({"subscription": "copy", "like": "lake"}, {**LAKE, "like": "copy"}):
        with refused("TQ008", '"copy"', "open batch"):
            work.ask("copy_position", **pair)
    work.ask("finish_batch", **{**named(other), "subscription": "copy"})
    # To itself, too: it is there already.
    assert work.ask("copy_position", **LAKE, like="lake") == work.ask("position", **LAKE)


def test_a_position_that_is_out_of_reach_is_not_copied(work: Engine) -> None:
    work.ask("subscribe", subscription="ahead", mode="exclusive")
    put_batches(work, 2)
    ahead = work.ask("seek", subscription="ahead", start="latest")
    behind = work.ask("position", **LAKE)
    # As rotation notes it.
    work.connection.execute(
        "update trunq.queue set reachable_tick_id = %s where name = %s", (ahead, work.queue)
    )
    with refused("TQ012", f"tick {behind} ", "out of reach"):
        work.ask("copy_position", subscription="ahead", like="lake")
    assert work.ask("copy_position", **LAKE, like="ahead") == ahead


def test_one_that_fails_is_warned_of_until_it_moves_again(work: Engine) -> None:
    put_batches(work, 1)
    start(work)
    assert work.call("list_warnings") == []
    batch = take(work)
    work.ask("fail_move", **named(batch), error="target is full\nand more", after="0")
    (warned,) = work.call("list_warnings")
    assert (warned.subscription, warned.warning.partition(": ")[2]) == ("lake", "target is full")
    assert "ada" in warned.hint
    moved(work)
    assert work.call("list_warnings") == []
