"""Ids that tell strangers nothing: functions/work/public_id.sql."""

from __future__ import annotations

import itertools
import random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from calling import ask, call, fetch, new_names, refused
from engine import Engine

Connection = psycopg.Connection[Any]
LARGEST = 2**63 - 1


@pytest.fixture
def work(connection: Connection) -> Engine:
    return Engine(connection, next(new_names("public"))).create()


def find(work: Engine, public_id: UUID, **more: Any) -> list[tuple[str, int]]:
    return [tuple(row) for row in call(work.connection, "find_public_id", public_id=public_id, **more)]


def test_a_public_id_is_a_uuid_from_which_its_message_is_found(work: Engine) -> None:
    chance = random.Random(17)
    ids = [0, 1, 2, 2**61 - 1, 2**61, 2**62 + 1, LARGEST, *(chance.randrange(2**63) for _ in range(30))]
    found = work.ask("public_ids", ids=ids)
    assert len(set(found)) == len(ids)
    for id, public_id in zip(ids, found, strict=True):
        assert (public_id.version, public_id.variant) == (8, "specified in RFC 4122")
        assert find(work, public_id) == [(work.queue, id)]
        assert work.ask("public_id", id=id) == public_id
    assert work.ask("public_ids", ids=[1, None]) == [found[1], None]
    assert work.ask("public_ids", ids=[]) is None


def test_neighbours_have_nothing_in_common(work: Engine) -> None:
    found = [public_id.int for public_id in work.ask("public_ids", ids=list(range(1, 257)))]
    flips = [(one ^ other).bit_count() for one, other in itertools.pairwise(found)]
    assert 55 < sum(flips) / len(flips) < 67, "of 122 bits half are other ones"
    # Each bit is set in half of them.
    counts = [sum(one >> bit & 1 for one in found) for bit in range(128)]
    assert sum(80 < count < 176 for count in counts) == 122


def test_the_same_id_of_another_queue_has_another(work: Engine, connection: Connection) -> None:
    other = Engine(connection, next(new_names("public"))).create()
    mine, theirs = work.ask("public_id", id=1), other.ask("public_id", id=1)
    assert mine != theirs
    assert find(work, theirs) == [(other.queue, 1)]
    assert find(work, theirs, queue=work.queue) == []
    other.ask("drop_queue", force=True)
    assert find(work, theirs) == []


def test_what_somebody_made_up_finds_nothing(work: Engine) -> None:
    public_id = work.ask("public_id", id=1)
    assert all(find(work, UUID(int=public_id.int ^ 1 << bit)) == [] for bit in range(0, 128, 7))
    assert all(find(work, uuid4()) == [] for _ in range(20))
    assert find(work, UUID(int=0)) == []


def test_a_new_key_makes_other_ids_and_finds_those_of_before_until_it_is_to_forget_them(work: Engine) -> None:
    before = work.ask("public_id", id=7)
    assert ask(work.connection, "renew_public_key") == 2
    after = work.ask("public_id", id=7)
    assert after != before
    assert find(work, before) == find(work, after) == [(work.queue, 7)]
    assert ask(work.connection, "renew_public_key", forget=True) == 1
    assert find(work, before) == find(work, after) == []


def test_what_cannot_be_is_refused(work: Engine) -> None:
    with refused("TQ005", "-1"):
        work.ask("public_ids", ids=[3, -1])
    with refused("TQ001"):
        ask(work.connection, "public_id", queue="nowhere", id=1)
    with refused("TQ001"):
        find(work, uuid4(), queue="nowhere")


def test_nobody_reads_the_key(work: Engine) -> None:
    assert fetch(
        work.connection, "select relacl is null from pg_class where oid = 'trunq.public_key'::regclass"
    )
