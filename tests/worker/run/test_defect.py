"""A worker that starts says what the tables of its queues lack."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from serving import Queue, drain
from trunq.client.message import Message


@pytest.fixture
def as_worker(queue: Queue) -> Iterator[str]:
    """The address of the database for a role that only works."""
    role = f"only_works_{queue.connection.info.dbname}"
    queue.connection.execute(f"create role {role} login".encode())
    queue.connection.execute("select trunq.grant_role('q', 'worker', %s)", (role,))
    yield make_conninfo(queue.dsn, user=role)
    queue.connection.execute(f"drop owned by {role}; drop role {role}".encode())


@pytest.mark.parametrize("who", ["owner", "worker"])
async def test_a_worker_warns_at_its_start_of_what_its_queue_lacks_and_works(
    queue: Queue, as_worker: str, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    caplog.set_level(logging.WARNING, "trunq")
    queue.connection.execute("drop index trunq_log.q_txid_id_idx, trunq_log.q_id_idx")
    queue.connection.execute("select trunq.create_queue('other'); drop trigger wake on trunq_log.other")
    worker = queue.worker(dsn=queue.dsn if who == "owner" else as_worker)
    handled = []

    @worker.handler("work")
    async def work(message: Message) -> None:
        handled.append(message.id)

    ids = queue.publish(count=3)
    await drain(worker)
    assert sorted(handled) == ids
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "trunq_log.q has no index USING btree (txid, id): trunq db upgrade --repair puts it back" in said
