"""The client behind PgBouncer in transaction mode: each statement may reach another server connection."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pooling import needs_pgbouncer, pooling
from trunq import Channel, Client, InvalidArgument, Message, QueueClosed, Schedule
from trunq.embedded import Embedded
from trunq.pipeline import Pipeline

pytestmark = needs_pgbouncer

THREADS = 6
ROUNDS = 7
"""psycopg prepares a statement at its fifth use."""


@pytest.fixture
def pooled(server: Embedded, database: str) -> Iterator[str]:
    """The test's database behind PgBouncer, with fewer server connections than there are clients."""
    with pooling(server, database, size=THREADS - 3) as dsn:
        yield dsn


class Noting:
    """A client that notes which of its methods were called."""

    def __init__(self, client: Client, called: set[str]) -> None:
        self._client = client
        self._called = called

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._client, name)


def methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}


def call_everything(client: Any, queue: str, direct: psycopg.Connection[Any]) -> None:
    """Call every method, and see that each answer is that of its own statement."""
    assert client.create_queue(queue)
    client.grant_role(queue, "reader", "pg_monitor", payload=True)
    assert client.list_roles(queue)[0].payload
    assert client.revoke_role(queue, "reader", "pg_monitor")
    client.set_tenancy(queue)
    client.set_tenancy(queue, False)
    assert client.subscribe(queue, "stream", mode="exclusive")
    assert not client.subscribe(queue, "default", max_attempts=1)
    for round in range(ROUNDS):
        use_messages(client, queue, round)
        use_ticks(client, queue, round)
    look(client, queue)
    use_movers(client, f"{queue}_moved")
    use_lanes(client, f"{queue}_laned")
    use_schedules(client, queue)
    use_keys(client, f"{queue}_keyed")
    use_results(client, f"{queue}_awaited")
    use_capture(client, f"{queue}_captured")
    use_stream(client, f"{queue}_streamed")
    use_references(client, f"{queue}_referred")
    use_pipelines(client, f"{queue}_piped")
    use_ids(client, f"{queue}_picked")
    use_columns(client, f"{queue}_wider")
    use_forward(client, f"{queue}_staged")
    use_conversion(client, f"{queue}_converted")
    # The bell is a session's, of which a pooler has none to give.
    assert client.take_bell(queue, connection=direct) == "held"
    assert client.give_bell(queue, connection=direct)
    client.set_queue(queue, tick_max_count=7)
    client.reset(queue, "stream")
    assert client.unsubscribe(queue, "stream")
    client.drop_queue(queue, force=True)


def use_messages(client: Any, queue: str, round: int) -> None:
    texts = [f"{queue} {round} {n}" for n in range(5)]
    ids = client.publish_many(queue, texts[:3])
    with client.transaction() as connection:
        ids.append(client.publish(queue, texts[3], connection=connection))
    drawn = client.draw_ids(queue, 1)
    assert not set(ids) & set(drawn)
    with client.copy(queue) as copy:
        copy.write(texts[4])
    messages: list[Message] = client.lease(queue, "default", "w", 5)
    assert [message.payload for message in messages] == texts
    cancelled = client.publish(queue, f"{queue} not needed")
    assert [row.state for row in client.cancel(queue, cancelled)] == ["ready"]
    assert client.lease(queue, "default", "w") == []
    extension = client.extend(messages, lease_time=60)
    assert (extension.expires_at > client.clock(), extension.cancelled) == (True, [])
    done, again, never, back, last = messages
    assert client.ack(done, result=texts[0]) == 1
    assert client.retry(again, error="again") == 1
    assert client.reject(never, "never") == 1
    assert client.release(back, after=0) == 1
    assert {fate.reason for fate in client.list_fates(queue, "default", [never.id])} == {"rejected"}
    assert client.time_out(last, error="too long") == 1
    assert client.show_message(queue, done.id)[0].payload == texts[0]
    assert client.purge(queue, ids=[cancelled]) == 1
    assert {dead.payload for dead in client.list_dead(queue)} == {texts[1], texts[2], texts[4]}
    assert client.count_dead(queue, error="NEVER") == 1
    assert {row.fingerprint for row in client.list_dead_groups(queue)} == {"again", "never", "too long"}
    assert client.count_messages(queue, state="dead") == 3
    sweep = client.start_sweep(queue, "purge", error="nobody has this")
    # Another thread's sweep() may be at it.
    is_stopped = client.stop_sweep(queue, sweep)
    assert not client.carry_sweep(queue, sweep)
    assert client.list_sweeps(queue)[0].state in ("running", "stopped", "finished")
    assert is_stopped or client.list_sweeps(queue)[0].state == "finished"
    assert client.sweep() in (0, 1)
    assert client.requeue(queue, ids=[again.id]) == 1
    assert client.purge(queue) == 2
    client.promote(queue)
    left = client.lease(queue, "default", "w", 5)
    assert {message.payload for message in left} == {texts[1], texts[3]}
    assert client.reclaim(queue, "default", "w") == 1
    client.reap(queue)
    # Who loses a lease in its only attempt is dead.
    assert client.purge(queue) == 2


def use_ticks(client: Any, queue: str, round: int) -> None:
    tick_id = client.tick(queue, force=True)
    batch = client.next_batch(queue, "stream", "w")
    texts = {message.payload for message in client.read(batch)}
    assert f"{queue} {round} 0" in texts
    assert texts == {message.payload for message in client.read_batch(queue, "stream", batch.batch_id)}
    if round % 2:
        assert client.finish(batch)
    else:
        assert client.finish_batch(queue, "stream", batch.batch_id, batch.token)
    assert client.position(queue, "stream") == tick_id
    assert client.list_ticks(queue, tick_id, tick_id)[0].tick_id == tick_id
    assert client.advance(queue, "stream", tick_id) == tick_id
    assert client.pause_ticks(queue)
    assert client.resume_ticks(queue)
    client.set_queue(queue, tick_external=True)
    assert client.advance(queue, "stream", client.cut_tick(queue)) > tick_id
    client.set_queue(queue, tick_external=False)


def look(client: Any, queue: str) -> None:
    assert queue in {each.queue for each in client.list_queues()}
    assert {each.subscription for each in client.list_subscriptions(queue)} == {"default", "stream"}
    assert {each.subscription for each in client.status(queue)} == {"default", "stream"}
    assert {message.payload.split()[0] for message in client.list_messages(queue)} == {queue}
    client.pause_queue(queue)
    assert all(each.paused for each in client.status(queue))
    assert client.retry_after(queue, "default") is not None
    client.pause_subscription(queue, "stream")
    assert client.resume_subscription(queue, "stream")
    assert client.resume_queue(queue)
    assert client.queue_channel(queue)
    assert client.snapshot()
    assert client.version() > 0
    assert client.list_duties()
    client.rotate(queue)
    assert client.list_losses(queue) == []
    assert client.accept_loss(queue, "stream") == 0
    client.summarize(queue)
    assert client.set_dead(queue, warn=False).channel
    client.roll_up(queue)
    assert client.statistics(queue) == []
    # Another thread may be sampling: then this one does not.
    client.sample()
    client.sampled_at()
    assert {row.queue for row in client.latest_samples(queue)} <= {queue}
    assert all(row.ready is None or row.ready >= 0 for row in client.list_samples(queue, "default"))
    assert queue in {row.queue for row in client.overview(10000)}
    assert client.backlog(queue) >= 0
    assert client.list_reports(queue) == []
    assert {row.queue for row in client.list_audit(queue)} <= {queue}
    assert client.forget_audit() == 0
    assert client.create_archive(queue)
    client.archive(queue)
    assert queue in {each.queue for each in client.list_archives()}
    client.drop_archive(queue)
    assert client.create_group(queue, "crew")
    assert client.join_group(queue, "crew", "ada")
    assert [each.group_name for each in client.list_groups(queue)] == ["crew"]
    assert [each.member for each in client.list_members(queue, "crew")] == ["ada"]
    assert client.leave_group(queue, "crew", "ada")
    assert client.drop_group(queue, "crew")
    assert client.create_taker(queue, "lake")
    assert [each.taker for each in client.list_takers(queue)] == ["lake"]
    client.drop_taker(queue, "lake")
    client.set_publishing(queue, max_per_transaction=1000, announce=True)
    assert client.announcement_channel(queue)
    begin = client.find_place(queue)[0].place
    heard = client.publish(queue, queue)
    first = client.read_on(queue, begin)[0]
    assert (first.id, first.payload) == (heard, queue)
    client.notify(queue, queue)
    client.close_queue(queue)
    with pytest.raises(QueueClosed):
        client.publish(queue, 1)
    client.open_queue(queue)


def use_movers(client: Any, queue: str) -> None:
    client.create_queue(queue)
    client.subscribe(queue, "out", mode="exclusive", max_attempts=0)
    assert client.start_mover(queue, "out", "w", {"to": queue}) == 0
    for round in range(2):
        client.publish(queue, queue)
        batch = client.next_batch(queue, "out", "w")
        named = (queue, "out", batch.batch_id, batch.token)
        move = client.begin_move(*named)
        assert client.receive(move.source, move.subscription_id, move.from_place, move.to_place)
        if round == 0:
            assert client.finish_move(*named, 1)
        else:
            assert client.fail_move(*named, queue, after=0)
    assert client.stop_mover(queue, "out")
    assert [(each.messages, each.error) for each in client.list_movers(queue)] == [(1, queue)]
    assert client.end_mover(queue, "out", "w")
    client.subscribe(queue, "like", mode="exclusive")
    assert client.copy_position(queue, "like", "like") == client.position(queue, "like")


def use_results(client: Any, queue: str) -> None:
    client.create_queue(queue)
    id = client.publish(queue, 1, awaited=True)
    (message,) = client.lease(queue, "default", "w")
    assert client.ack(message, result=queue) == 1
    assert client.result(queue, id, timeout=30) == queue
    assert [each.result for each in client.list_replies(queue, [id])] == [queue]
    assert client.reply_channel(queue)
    version = client.set_memo(queue, "n", 1, expected=0)
    memo = client.get_memo(queue, "n")
    assert [memo] == client.list_memos(queue)
    assert (memo.value, memo.version) == (1, version)
    assert client.delete_memo(queue, "n")
    assert client.forget_memos() == 0


def use_schedules(client: Any, queue: str) -> None:
    nightly, listed = f"{queue}_nightly", f"{queue}_listed"
    assert client.create_schedule(nightly, queue, queue, cron="0 3 * * *", zone="Europe/Prague")
    assert client.list_schedules(queue)[0].due_times == 1000
    assert client.preview_schedule(nightly, 2)[0].minute == 0
    client.pause_schedule(nightly)
    assert client.resume_schedule(nightly)
    assert client.fill_schedules() >= 1
    assert client.fire() >= 0
    assert client.list_schedule_runs(nightly) == []
    assert client.run_schedule(nightly) == client.list_schedule_runs(nightly)[0].id
    client.delete_schedule(nightly)
    wanted = [Schedule(schedule=listed, queue=queue, payload={"of": queue}, every=60)]
    assert [each.change for each in client.sync_schedules(wanted, queue)] == ["created"]
    assert client.list_schedules(queue)[0].payload == {"of": queue}


def use_lanes(client: Any, queue: str) -> None:
    assert client.create_queue(queue, lanes="priority,key")
    client.set_lanes(queue, policy="ranked", function="by_need")
    assert [ranking.function for ranking in client.list_rankings(queue)] == ["by_need"]
    assert client.fleet(queue).slots == 0
    client.set_lanes(queue, max_running=5)
    client.set_lane(queue, lane="a", weight=2)
    client.publish_many(queue, [queue] * 3, keys=["a", "b", "c"], priorities=[1, 2, 2])
    assert client.set_ranks(queue, "default", ["b", "c"], [2, 1], [2, 2]) == 2
    client.pause_lane(queue, lane="a", priority=1)
    assert [message.key for message in client.lease(queue, "default", "w", 5)] == ["c", "b"]
    assert client.resume_lane(queue, lane="a", priority=1)
    assert [message.payload for message in client.lease(queue, "default", "w", 5)] == [queue]
    assert {lane.running for lane in client.list_lanes(queue) if lane.lane != "a"} == {1}
    client.drop_queue(queue, force=True)


def use_keys(client: Any, queue: str) -> None:
    assert client.create_queue(queue, unique="refuse")
    first = client.publish_unique(queue, 1, "a")
    assert first.is_new
    assert client.publish_unique(queue, 2, "a") == (first.id, False)
    assert [row.is_new for row in client.publish_many_unique(queue, [1, 2], ["a", "b"])] == [False, True]
    client.drop_queue(queue, force=True)


def use_capture(client: Any, queue: str) -> None:
    assert client.create_queue(queue)
    with client.transaction() as connection:
        connection.execute(f"create table {queue} (id integer)")
    assert client.capture(queue, queue)
    with client.transaction() as connection:
        connection.execute(f"insert into {queue} values (1)")
    assert [message.kind for message in client.lease(queue, "default", "w")] == [f"public.{queue}.insert"]
    assert [each.table_name for each in client.list_captures(queue)] == [f"public.{queue}"]
    assert client.uncapture(queue)
    client.drop_queue(queue, force=True)


def use_stream(client: Any, queue: str) -> None:
    client.create_queue(queue)
    client.subscribe(queue, "lake", mode="exclusive", max_attempts=0)
    assert [each.subscription for each in client.list_streams(queue)] == ["lake"]
    client.publish(queue, queue)
    batch = client.next_batch(queue, "lake", "w")
    named = (queue, "lake", batch.batch_id, batch.token)
    assert client.retry_batch(*named, after=0, error=queue) == 1
    assert client.show_batch(queue, "lake", batch.batch_id).batch_id == batch.batch_id
    assert client.fail_batch(*named, queue, after=0) <= client.clock()
    tick_id = client.tick(queue, force=True)
    assert client.seek(queue, "lake", tick_id) == tick_id
    client.publish(queue, f"{queue} again")
    client.tick(queue, force=True)
    read: list[str] = []
    for batch in client.stream(queue, "lake", "w", poll=0.1):
        read += [message.payload for message in batch]
        if f"{queue} again" in read:
            break
    assert set(read) <= {queue, f"{queue} again"}
    client.drop_queue(queue, force=True)


def use_references(client: Any, queue: str) -> None:
    client.create_queue(queue)
    client.publish(queue, queue)
    (message,) = client.lease(queue, "default", "w")
    client.set_progress(message, percent=50, note=queue, checkpoint=queue)
    assert [each.note for each in client.list_progress(queue)] == [queue]
    assert client.show_checkpoint(queue, message.id) == queue
    assert client.reject(message, client.add_reference(queue, public="Come again")) == 1
    (shown,) = client.show_public(queue, message.id)
    assert [each.id for each in client.find_reference(shown.reference, queue)] == [message.id]
    assert client.create_webhook(queue, queue, "SHOP_SECRET")
    assert queue in {each.webhook for each in client.list_webhooks()}
    assert client.drop_webhook(queue)
    assert client.delete(queue, message.id) == 1
    assert [each.messages for each in client.list_deletions(queue)] == [1]
    client.drop_queue(queue, force=True)
    client.for_tenant(queue)


def use_ids(client: Any, queue: str) -> None:
    client.create_queue(queue)
    first, second = client.publish_many(queue, [f"{queue} 1", f"{queue} 2"])
    public = client.public_id(queue, second)
    assert client.public_ids(queue, [second]) == [public]
    assert [(each.queue, each.id) for each in client.find_public_id(public)] == [(queue, second)]
    (message,), rest = client.lease_ids(queue, "default", f"{queue} w", [second])
    assert (message.payload, rest) == (f"{queue} 2", [])
    assert {each.worker for each in client.list_workers(queue)} == {f"{queue} w"}
    assert client.free_worker(f"{queue} w") == 1
    with pytest.raises(InvalidArgument, match="in nobody's way"):
        client.end_session(1, datetime(2000, 1, 1, tzinfo=UTC))
    (message,) = client.lease(queue, "default", "w")
    assert message.id == first
    assert client.park(message, queue, 3600) == 1
    assert client.resume(queue, queue, {"of": queue})
    assert client.show_resumed(queue, first) == {"of": queue}
    assert client.list_defects(queue) == []
    client.set_publishing(queue, announce=True)
    client.set_reminders(queue, after=60)
    client.drop_queue(queue, force=True)


def use_columns(client: Any, queue: str) -> None:
    client.create_queue(queue)
    assert client.add_column(queue, "customer", "text")
    assert [each.name for each in client.list_columns(queue)] == ["customer"]
    client.publish(queue, queue, columns={"customer": queue})
    assert [each.columns for each in client.lease(queue, "default", "w")] == [{"customer": queue}]
    client.drop_column(queue, "customer")
    assert client.list_columns(queue) == []
    client.drop_queue(queue, force=True)


def use_forward(client: Any, queue: str) -> None:
    into = f"{queue}_next"
    client.create_queue(queue)
    client.create_queue(into)
    client.publish(queue, queue)
    assert client.forward(client.lease(queue, "default", "w"), into=into) != [None]
    (moved,) = client.lease(into, "default", "w")
    assert moved.payload == queue
    client.retry(moved, after=3600)
    assert client.forward_retries(into, "default", queue) == 1
    client.drop_queue(queue, force=True)
    client.drop_queue(into, force=True)


def use_conversion(client: Any, queue: str) -> None:
    client.create_queue(queue)
    assert client.list_preparations(queue, "key") == []
    assert client.convert_queue(queue, lanes="key")
    client.drop_queue(queue, force=True)


def use_pipelines(client: Any, pipeline: str) -> None:
    sink = {"format": "table", "table": pipeline, "mode": "upsert", "key": ["id"], "newest": "at"}
    definition = Pipeline(pipeline, source={"format": "table", "table": "source"}, sink=sink).definition
    assert client.create_pipeline(pipeline, definition)
    assert pipeline in {each.pipeline for each in client.list_pipelines()}
    assert client.run_pipeline(pipeline, {"of": pipeline}) > 0
    assert client.list_runs(pipeline) == []
    assert client.backfill_pipeline(pipeline, {"column": "id", "from": 1, "to": 2}) > 0
    assert client.list_backfills(pipeline) == []
    asked = client.backfill_pipeline(pipeline, {"from": "1", "to": "3"}, "1", 1)
    assert [row.state for row in client.list_shares(pipeline, asked)] == ["running", "waiting"]
    assert client.rerun_shares(pipeline, asked, 2) == 1
    assert client.cancel_pipeline(pipeline, asked)
    client.pause_pipeline(pipeline)
    assert client.resume_pipeline(pipeline)
    assert not client.cancel_pipeline(pipeline)
    assert client.skip_pipeline(pipeline) is None
    assert client.accept_pipeline(pipeline) is None
    client.set_pipeline_state(pipeline, {"of": pipeline})
    assert client.set_pipeline_state(pipeline, {}) == {"of": pipeline}
    assert client.list_schema_changes(pipeline) == []
    assert client.list_schemas(pipeline) == []
    assert client.list_instances(pipeline) == []
    assert client.show_compaction(pipeline) == []
    assert client.count_quarantine(pipeline) == []
    assert client.list_quarantine(pipeline) == []
    assert client.purge_quarantine(pipeline) == 0
    assert client.resend_quarantine(pipeline) > 0
    client.drop_pipeline(pipeline)


@pytest.mark.slow
def test_every_method_in_six_threads_answers_for_its_own_statement(
    pooled: str, database: str, connection: psycopg.Connection[Any]
) -> None:
    called: set[str] = set()
    with (
        Client(pooled, max_connections=THREADS) as client,
        psycopg.connect(database, autocommit=True) as direct,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        noting = Noting(client, called)
        work = [
            threads.submit(call_everything, noting, f"q{number}", direct if number == 0 else connection)
            for number in range(THREADS)
        ]
        for each in work:
            each.result()
        term = noting.elect("me")
        noting.perform_duties()
        assert "promote" in {duty.duty for duty in noting.list_duties()}
        noting.create_queue("last")
        noting.set_publishing("last", announce=True)
        with pytest.raises(InvalidArgument, match="behind a connection pooler"):
            next(noting.listen(Channel("last")))
        published = noting.publish("last", 1)
        assert [wait.reason for wait in noting.explain_wait("last", published)] == ["workers"]
        assert noting.list_performed()
        assert noting.list_warnings("last") == []
        assert "leader" not in {row.area for row in noting.diagnose()}
        assert noting.forget("last") == 0
        assert noting.perform_duty("reap", "last").error is None
        assert noting.empty_queue("last") == 1
        assert not noting.adopt()
        noting.let_clock_move()
        assert noting.resign("me", term)
        assert noting.remind() == 0
        assert noting.renew_public_key() > 0
        noting.rebase()
        noting.connect().close()
    noting.close()
    assert methods() - called == set()


def test_a_pool_and_a_connection_of_ones_own_run_no_statement_under_anothers_name(pooled: str) -> None:
    """Both prepare statements by default, which the pooler's connections do not have, or have of others."""

    def use(pool: ConnectionPool[psycopg.Connection[Any]], queue: str) -> list[Any]:
        client = Client(pool)
        client.create_queue(queue)
        with psycopg.connect(pooled, autocommit=True) as own:
            for number in range(3 * ROUNDS):
                client.publish(queue, [queue, number])
                client.publish(queue, [queue, number], connection=own)
                client.clock(connection=own)
        return [message.payload[0] for message in client.lease(queue, "default", "w", 100)]

    with ConnectionPool(pooled, min_size=THREADS, open=True) as pool, ThreadPoolExecutor(THREADS) as threads:
        queues = [f"q{number}" for number in range(THREADS)]
        found = list(threads.map(lambda queue: use(pool, queue), queues))
    assert found == [[queue] * 6 * ROUNDS for queue in queues]
