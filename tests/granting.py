"""Two queues, database roles that have roles of one, and who may call which function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from calling import ask, call, fetch, new_names, publish
from conftest import Connect

Connection = psycopg.Connection[Any]

ROLES = ("publisher", "worker", "reader", "admin")
EVERYBODY = frozenset(ROLES)
LOOKS = frozenset({"reader", "admin"})
WORKS = frozenset({"worker"})
ADMIN = frozenset({"admin"})
PUBLISHES = frozenset({"publisher"})
OWNER: frozenset[str] = frozenset()

UNTIL = "2999-01-01"
HELD = {"subscription": "default", "lease_id": 1, "token": 1}
SCOPE = "mine:one"
BATCH = {"subscription": "stream", "batch_id": 1}
PLACE = Jsonb({"tick_id": 1, "snapshot": "1:1:", "txid": 0, "id": 0})

DEFINITION = Jsonb({"source": {"format": "csv"}, "sink": {"format": "delta"}})

MAY: dict[str, tuple[frozenset[str], dict[str, Any]]] = {
    "accept_loss": (ADMIN, {"subscription": "default"}),
    "accept_pipeline": (OWNER, {"pipeline": "there"}),
    "ack": (WORKS, {**HELD, "ids": [1]}),
    "add_column": (OWNER, {"column": "shop", "type": "text"}),
    "add_reference": (EVERYBODY, {"error": "e"}),
    "adopt": (OWNER, {}),
    "advance": (WORKS, {"subscription": "stream", "tick_id": 1}),
    "announcement_channel": (EVERYBODY, {}),
    "archive": (OWNER, {}),
    "backlog": (LOOKS | WORKS, {}),
    "backfill_pipeline": (OWNER, {"pipeline": "there", "range": Jsonb({})}),
    "begin_move": (WORKS, {**BATCH, "token": 1}),
    "cancel": (ADMIN, {"ids": [1]}),
    "carry_sweep": (ADMIN, {"sweep_id": 1}),
    "cancel_pipeline": (OWNER, {"pipeline": "there"}),
    "capture": (OWNER, {"table": "public.anything"}),
    "clock": (EVERYBODY, {}),
    "close_queue": (ADMIN, {}),
    "convert_queue": (OWNER, {"lanes": "key"}),
    "copy_position": (WORKS | ADMIN, {"subscription": "stream", "like": "stream"}),
    "count_dead": (LOOKS, {}),
    "count_messages": (LOOKS, {}),
    "count_quarantine": (OWNER, {"pipeline": "there"}),
    "create_archive": (OWNER, {}),
    "create_group": (OWNER, {"group": "g"}),
    "create_pipeline": (OWNER, {"pipeline": "p", "definition": DEFINITION}),
    "create_queue": (OWNER, {"queue": "made_by_a_role"}),
    "create_webhook": (OWNER, {"webhook": "w", "queue": "mine", "secret": "S"}),
    "create_schedule": (OWNER, {"schedule": "s", "every": timedelta(minutes=1)}),
    "create_taker": (OWNER, {"taker": "t"}),
    "cut_tick": (OWNER, {"tick_id": 9}),
    "delete": (ADMIN, {"ids": [1]}),
    "delete_memo": (WORKS | ADMIN, {"scope": SCOPE, "name": "n"}),
    "delete_schedule": (OWNER, {"schedule": "there"}),
    "diagnose": (EVERYBODY, {}),
    "draw_ids": (PUBLISHES, {"count": 1}),
    "drop_archive": (OWNER, {}),
    "drop_group": (OWNER, {"group": "crew"}),
    "drop_pipeline": (OWNER, {"pipeline": "there"}),
    "drop_webhook": (OWNER, {"webhook": "w"}),
    "drop_column": (OWNER, {"column": "shop"}),
    "drop_queue": (OWNER, {"force": True}),
    "drop_taker": (OWNER, {"taker": "there"}),
    "elect": (OWNER, {"name": "me"}),
    "empty_queue": (OWNER, {}),
    "end_session": (OWNER, {"pid": 1, "began_at": UNTIL}),
    "end_mover": (WORKS, {"subscription": "stream", "worker": "w"}),
    "extend": (WORKS, HELD),
    "explain_wait": (LOOKS, {"id": 1}),
    "fail_batch": (WORKS, {**BATCH, "token": 1}),
    "fail_move": (WORKS, {**BATCH, "token": 1, "error": "e"}),
    "find_place": (LOOKS | WORKS, {}),
    "find_reference": (LOOKS, {"reference": "0000000000"}),
    "finish_batch": (WORKS, {**BATCH, "token": 1}),
    "finish_move": (WORKS, {**BATCH, "token": 1}),
    "fire": (OWNER, {}),
    "fleet": (LOOKS, {}),
    "forget": (OWNER, {}),
    "forget_audit": (OWNER, {}),
    "forget_memos": (OWNER, {}),
    "get_memo": (WORKS | ADMIN, {"scope": SCOPE, "name": "n"}),
    "give_bell": (EVERYBODY, {}),
    "grant_role": (OWNER, {"role": "admin", "grantee": "pg_monitor"}),
    "join_group": (WORKS, {"group": "crew", "member": "m"}),
    "lease_ids": (WORKS, {"subscription": "default", "worker": "w", "ids": [1]}),
    "lease": (WORKS, {"subscription": "default", "worker": "w"}),
    "let_clock_move": (OWNER, {}),
    "latest_samples": (LOOKS | WORKS, {}),
    "leave_group": (WORKS | ADMIN, {"group": "crew", "member": "m"}),
    "list_archives": (OWNER, {}),
    "list_audit": (LOOKS, {}),
    "list_captures": (OWNER, {}),
    "list_columns": (EVERYBODY, {}),
    "list_dead": (LOOKS, {}),
    "list_dead_groups": (LOOKS, {}),
    "list_sweeps": (LOOKS, {}),
    "list_duties": (EVERYBODY, {}),
    "list_fates": (WORKS, {"subscription": "default", "ids": [1]}),
    "list_deletions": (ADMIN, {}),
    "list_groups": (LOOKS | WORKS, {}),
    "list_lanes": (LOOKS, {}),
    "list_defects": (LOOKS | WORKS, {}),
    "list_losses": (LOOKS | WORKS, {}),
    "list_members": (LOOKS | WORKS, {"group": "crew"}),
    "list_memos": (WORKS | ADMIN, {"scope": SCOPE}),
    "list_messages": (LOOKS, {}),
    "list_movers": (LOOKS | WORKS, {}),
    "list_pipelines": (OWNER, {}),
    "list_webhooks": (PUBLISHES, {}),
    "list_workers": (OWNER, {}),
    "free_worker": (OWNER, {"worker": "w"}),
    "list_preparations": (EVERYBODY, {"lanes": "key"}),
    "list_progress": (LOOKS, {}),
    "list_quarantine": (OWNER, {"pipeline": "there"}),
    "list_queues": (EVERYBODY, {}),
    "list_rankings": (OWNER, {}),
    "list_replies": (OWNER, {"ids": []}),
    "list_roles": (EVERYBODY, {}),
    "list_backfills": (OWNER, {}),
    "list_performed": (OWNER, {}),
    "list_reports": (LOOKS | WORKS, {}),
    "list_runs": (OWNER, {}),
    "list_shares": (OWNER, {"pipeline": "there"}),
    "list_samples": (LOOKS | WORKS, {}),
    "list_schedule_runs": (OWNER, {"schedule": "there"}),
    "list_schema_changes": (OWNER, {"pipeline": "there"}),
    "list_schemas": (OWNER, {"pipeline": "there"}),
    "list_instances": (OWNER, {"pipeline": "there"}),
    "show_compaction": (OWNER, {"pipeline": "there"}),
    "list_schedules": (OWNER, {}),
    "list_streams": (LOOKS | WORKS, {}),
    "list_subscriptions": (EVERYBODY, {}),
    "list_takers": (LOOKS | WORKS, {}),
    "list_ticks": (LOOKS, {}),
    "list_warnings": (LOOKS | WORKS, {}),
    "next_batch": (WORKS, {"subscription": "stream", "worker": "w"}),
    "notify": (EVERYBODY, {"channel": "news"}),
    "open_queue": (ADMIN, {}),
    "overview": (EVERYBODY, {}),
    "park": (WORKS, {**HELD, "ids": [1], "tokens": ["t"], "delays": ["1 hour"]}),
    "pause_lane": (ADMIN, {"lane": "a", "until": UNTIL}),
    "pause_pipeline": (OWNER, {"pipeline": "there"}),
    "pause_queue": (ADMIN, {"until": UNTIL}),
    "pause_schedule": (OWNER, {"schedule": "there"}),
    "pause_subscription": (ADMIN, {"subscription": "default", "until": UNTIL}),
    "pause_ticks": (ADMIN, {}),
    "perform_duties": (OWNER, {}),
    "perform_duty": (OWNER, {"duty": "tick"}),
    "position": (WORKS | LOOKS, {"subscription": "stream"}),
    "preview_schedule": (OWNER, {"schedule": "there"}),
    "promote": (OWNER, {}),
    "publish": (PUBLISHES, {"payload": {}, "key": "k"}),
    "publish_many": (PUBLISHES, {"payloads": [{}, {}], "keys": ["k"]}),
    "publish_many_unique": (PUBLISHES, {"payloads": [{}, {}], "unique_keys": ["k", "l"]}),
    "publish_unique": (PUBLISHES, {"payload": {}, "unique_key": "k"}),
    "purge": (ADMIN, {}),
    "purge_quarantine": (OWNER, {"pipeline": "there"}),
    "queue_channel": (EVERYBODY, {}),
    "read_batch": (WORKS, BATCH),
    "read_on": (LOOKS | WORKS, {"place": "1.1"}),
    "reap": (OWNER, {}),
    "rebase": (OWNER, {}),
    "receive": (OWNER, {"source": "s", "subscription_id": 1, "from": PLACE, "to": PLACE}),
    "reclaim": (WORKS, {"subscription": "default", "worker": "w"}),
    "reject": (WORKS, {**HELD, "ids": [1]}),
    "release": (WORKS, {**HELD, "ids": [1]}),
    "reply_channel": (EVERYBODY, {}),
    "requeue": (ADMIN, {}),
    "resend_quarantine": (OWNER, {"pipeline": "there"}),
    "reset": (OWNER, {"subscription": "default"}),
    "resign": (OWNER, {"name": "me", "term": 1}),
    "resume": (PUBLISHES | WORKS | ADMIN, {"token": "t"}),
    "resume_lane": (ADMIN, {"lane": "a"}),
    "rerun_shares": (OWNER, {"pipeline": "there"}),
    "resume_pipeline": (OWNER, {"pipeline": "there"}),
    "resume_queue": (ADMIN, {}),
    "resume_schedule": (OWNER, {"schedule": "there"}),
    "resume_subscription": (ADMIN, {"subscription": "default"}),
    "resume_ticks": (ADMIN, {}),
    "retry": (WORKS, {**HELD, "ids": [1]}),
    "retry_batch": (WORKS, {**BATCH, "token": 1}),
    "public_id": (EVERYBODY, {"id": 1}),
    "public_ids": (EVERYBODY, {"ids": [1]}),
    "find_public_id": (LOOKS | WORKS, {"public_id": "00000000-0000-8000-8000-000000000000"}),
    "renew_public_key": (OWNER, {}),
    "remind": (OWNER, {}),
    "set_reminders": (ADMIN, {"after": "1 minute"}),
    "forward": (WORKS, {**HELD, "ids": [1], "into": "other"}),
    "forward_retries": (OWNER, {"subscription": "default", "into": "other"}),
    "retry_after": (EVERYBODY, {"subscription": "default"}),
    "revoke_role": (OWNER, {"role": "admin", "grantee": "pg_monitor"}),
    "roll_up": (OWNER, {}),
    "rotate": (OWNER, {}),
    "run_schedule": (OWNER, {"schedule": "there"}),
    "run_pipeline": (OWNER, {"pipeline": "there"}),
    "sample": (OWNER, {}),
    "sampled_at": (EVERYBODY, {}),
    "seek": (WORKS | ADMIN, {"subscription": "stream", "tick_id": 1}),
    "set_dead": (OWNER, {"warn": True}),
    "set_lane": (ADMIN, {"lane": "a", "weight": 3}),
    "set_lanes": (ADMIN, {"max_running": 3}),
    "set_memo": (WORKS | ADMIN, {"scope": SCOPE, "name": "n", "value": Jsonb(1)}),
    "set_pipeline_state": (OWNER, {"pipeline": "there", "state": Jsonb({})}),
    "set_progress": (WORKS, {**HELD, "id": 1, "percent": 1}),
    "set_publishing": (ADMIN, {"max_waiting": 9}),
    "set_queue": (OWNER, {"tick_max_count": 5}),
    "set_ranks": (OWNER, {"subscription": "default", "lanes": ["a"], "ranks": [1]}),
    "set_tenancy": (OWNER, {}),
    "show_batch": (LOOKS | WORKS, BATCH),
    "show_checkpoint": (WORKS, {"id": 1}),
    "show_message": (LOOKS, {"id": 1}),
    "show_public": (LOOKS, {"id": 1}),
    "show_resumed": (WORKS, {"id": 1}),
    "skip_pipeline": (OWNER, {"pipeline": "there"}),
    "snapshot": (EVERYBODY, {}),
    "start_sweep": (ADMIN, {"act": "requeue"}),
    "stop_sweep": (ADMIN, {"sweep_id": 1}),
    "sweep": (OWNER, {}),
    "start_mover": (WORKS, {"subscription": "stream", "worker": "w", "definition": Jsonb({})}),
    "statistics": (LOOKS, {}),
    "status": (LOOKS | WORKS, {}),
    "stop_mover": (WORKS | ADMIN, {"subscription": "stream"}),
    "subscribe": (ADMIN, {"subscription": "default", "rate": 9}),
    "summarize": (OWNER, {}),
    "sync_schedules": (OWNER, {"schedules": Jsonb([])}),
    "take_bell": (EVERYBODY, {}),
    "tick": (OWNER, {"force": True}),
    "time_out": (WORKS, {**HELD, "ids": [1]}),
    "uncapture": (OWNER, {"table": "public.anything"}),
    "unsubscribe": (OWNER, {"subscription": "stream"}),
    "version": (OWNER, {}),
}
"""Each public function: which roles may call it, and a call. Nobody named: the owner of trunq alone."""


def make_shop(connection: Connection) -> Connection:
    """The owner, and two queues with everything a queue may have."""
    for queue in ("mine", "other"):
        ask(connection, "create_queue", queue=queue, lanes="key", unique="refuse")
        ask(connection, "subscribe", queue=queue, subscription="stream", mode="exclusive")
        ask(connection, "create_group", queue=queue, group="crew")
        ask(connection, "set_publishing", queue=queue, announce=True)
        publish(connection, queue, 3)
    connection.execute("create table anything (id bigint primary key)")
    ask(connection, "create_schedule", queue="mine", schedule="there", every=timedelta(hours=1))
    ask(connection, "start_sweep", queue="mine", act="purge")
    return connection


@contextmanager
def granting(shop: Connection, connect: Connect, queue: str = "mine") -> Iterator[Callable[..., Connection]]:
    """What opens a session of a new database role that has these roles of the queue."""
    names = new_names(f"role_{shop.info.dbname}")
    made: list[str] = []

    def give(*roles: str, **more: Any) -> Connection:
        made.append(next(names))
        shop.execute(f"create role {made[-1]}".encode())
        for role in roles:
            ask(shop, "grant_role", queue=queue, role=role, grantee=made[-1], **more)
        session = connect()
        session.execute(f"set role {made[-1]}".encode())
        return session

    try:
        yield give
    finally:
        for name in made:
            shop.execute(f"drop owned by {name}; drop role {name}".encode())


def me(session: Connection) -> str:
    return str(fetch(session, "select current_user"))


def outcome(session: Connection, function: str, queue: str | None, arguments: dict[str, Any]) -> str:
    """The SQLSTATE of a call, undone: 00000 when it did what it should."""
    given = dict(arguments)
    takes = fetch(
        session,
        "select 'p_queue' = any (p.proargnames) from pg_proc p"
        " where p.pronamespace = 'trunq'::regnamespace and p.proname = %s",
        function,
    )
    if takes and queue is not None:
        given.setdefault("queue", queue)
    state = "00000"
    with session.transaction(force_rollback=True):
        try:
            with session.transaction():
                call(session, function, **given)
        except psycopg.Error as error:
            state = error.sqlstate or "?"
    return state
