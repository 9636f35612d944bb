"""What is left of a queue that was dropped."""

from __future__ import annotations

from typing import Any

import psycopg

TABLES = """
select c.table_schema || '.' || c.table_name from information_schema.columns c
join information_schema.tables t using (table_schema, table_name)
where c.column_name = 'queue_id' and c.table_schema = 'trunq' and t.table_type = 'BASE TABLE'
  and c.table_name <> 'deletion'  -- who erased what outlives the queue
"""
RELATIONS = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('trunq_log', 'trunq_data', 'trunq_queue') and c.relname ~ %s
"""


def left_of(connection: psycopg.Connection[Any], queue: str, queue_id: int) -> list[str]:
    """Tables that have rows of it, and relations with its name; its archive stays."""
    tables = [
        table
        for (table,) in connection.execute(TABLES).fetchall()
        if connection.execute(f"select from {table} where queue_id = {queue_id} limit 1".encode()).fetchone()
    ]
    relations = connection.execute(RELATIONS, (f"^{queue}(_(?!archive)|$)",)).fetchall()
    return tables + [name for (name,) in relations]
