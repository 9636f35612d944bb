"""Takes trunq out of a database: queue by queue, and its schemas at the end.

A queue goes in a transaction of its own: the locks of all at once may be more than the server has room for,
and one that is in use leaves the others as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg.rows import tuple_row

from trunq import Client, display
from trunq.cli.ground.failure import Mistake
from trunq.install import LOCK
from trunq.record import Status

SCHEMAS: Final = ("trunq", "trunq_log", "trunq_queue", "trunq_data", "trunq_archive")

_FACADES: Final = """
select n.nspname from pg_namespace n
where n.nspname in ('pgq', 'pgq_coop', 'pgq_ext')
  and obj_description(to_regnamespace('pgq')::oid, 'pg_namespace') like 'trunq:%'
order by 1
"""
"""Schemas of a facade (trunq_pgq), where trunq's own is installed."""

_STRANGERS: Final = """
with theirs as (
  -- What needs something of ours; of a rule, trigger, default or constraint, the table or view that has it.
  select coalesce(r.ev_class, t.tgrelid, a.adrelid, nullif(k.conrelid, 0), d.objid) as oid,
    case when coalesce(r.ev_class, t.tgrelid, a.adrelid, nullif(k.conrelid, 0)) is null then d.classid
      else 'pg_class'::regclass end as classid,
    false as is_inside
  from pg_depend d
  join lateral pg_identify_object(d.refclassid, d.refobjid, 0) used on used.schema = any (%(schemas)s)
  left join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
  left join pg_trigger t on d.classid = 'pg_trigger'::regclass and t.oid = d.objid
  left join pg_attrdef a on d.classid = 'pg_attrdef'::regclass and a.oid = d.objid
  left join pg_constraint k on d.classid = 'pg_constraint'::regclass and k.oid = d.objid
  where d.deptype in ('n', 'a')
    -- A captured table goes on without its triggers.
    and coalesce(t.tgname !~ '^trunq_capture_[0-9]+_(insert|update|delete|truncate)$', true)
  union
  -- What somebody made where the queues and their archives are.
  select c.oid, 'pg_class'::regclass, true from pg_class c
  where c.relnamespace in ('trunq_log'::regnamespace, 'trunq_queue'::regnamespace)
      and c.relkind in ('r', 'p', 'v', 'm', 'f')
      and c.relname !~ '^_(unique)?specimen'
      and not exists (select from trunq.queue q where c.relname in (q.log_table, q.name || '_messages'))
    or c.relnamespace = 'trunq_archive'::regnamespace and c.relkind in ('r', 'v', 'm', 'f'))
select distinct format('%%s %%s', i.type, i.identity) as stranger
from theirs t cross join lateral pg_identify_object(t.classid, t.oid, 0) i
where t.is_inside or i.schema <> all (%(schemas)s)
order by stranger
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database loses with trunq."""

    queues: dict[str, list[Status]]
    archives: list[str]
    """Names of queues, of those that are gone as well."""
    strangers: list[str]
    """What others made that cannot be without it."""
    schemas: list[str]
    """Those of trunq, and of a facade over it."""

    @property
    def waiting(self) -> int:
        """Messages that somebody should still handle."""
        return sum(map(_waiting, (row for rows in self.queues.values() for row in rows)))


def look(client: Client) -> Contents:
    """What is there to be dropped."""
    queues: dict[str, list[Status]] = {row.queue: [] for row in client.list_queues()}
    archives = [row.queue for row in client.list_archives()]
    for row in client.status():
        queues[row.queue].append(row)
    with client.transaction() as connection, connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("set local search_path = pg_catalog, pg_temp")
        schemas = [*SCHEMAS, *(name for (name,) in cursor.execute(_FACADES.encode()))]
        cursor.execute(_STRANGERS.encode(), {"schemas": schemas})
        return Contents(queues, archives, [name for (name,) in cursor], schemas)


def drop_queue(client: Client, queue: str, *, force: bool) -> None:
    """Drop a queue with its subscriptions; unless forced, not while messages wait."""
    with client.transaction() as connection:
        if not force:
            # Nobody publishes between this look and the end.
            client.close_queue(queue, connection=connection)
            if waiting := sum(map(_waiting, client.status(queue, connection=connection))):
                raise Mistake(
                    f"{say_waiting(waiting)} in queue {queue} by now: it and those after it are kept."
                )
        client.drop_queue(queue, force=True, connection=connection)


def drop_schemas(client: Client, schemas: list[str]) -> None:
    """Drop what is left when no queue is."""
    with client.transaction() as connection:
        connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCK,))
        if client.list_queues(connection=connection):
            raise Mistake("Somebody made a queue meanwhile: run it again.")
        connection.execute("select trunq._become_owner()")
        connection.execute(f"drop schema {', '.join(reversed(schemas))} cascade".encode())


def say_waiting(count: int) -> str:
    """1 message waits, 2 messages wait."""
    return display.counted(count, "message waits", "messages wait")


def _waiting(row: Status) -> int:
    return row.ready + row.leased + row.delayed
