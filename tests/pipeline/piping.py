"""Running pipelines from tests: without a worker, a message at a time."""

from __future__ import annotations

from itertools import count
from typing import Any

import psycopg

from trunq import Client
from trunq.pipeline import Pipeline
from trunq.pipeline.control import Asked
from trunq.pipeline.run import Executor
from trunq.pipeline.runner import asked

_names = count(1)


class Bench:
    """A database, a client, and pipelines with names of their own."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any]) -> None:
        self.dsn = dsn
        self.connection = connection
        self.client = Client(dsn, max_connections=4)
        self.executor = Executor(self.client, dsn)

    def make(self, source: dict[str, Any], sink: dict[str, Any], **more: Any) -> str:
        """Create a pipeline; its name."""
        name = more.pop("name", None) or f"moved_{next(_names)}"
        made = Pipeline(name, source=source, sink=sink, **more)
        self.client.create_pipeline(name, made.definition)
        return name

    def run(self, pipeline: str, payload: Any = None) -> dict[str, Any]:
        """Ask for a run, and execute it."""
        return self.execute(self.client.run_pipeline(pipeline, payload))

    def asked(self, message_id: int) -> Asked:
        """What a message asks for; it stays in the queue."""
        held = self.client.lease("pipelines", "default", "bench", 1000)
        try:
            return next(asked(message) for message in held if message.id == message_id)
        finally:
            self.client.release(held)

    def execute(self, message_id: int) -> dict[str, Any]:
        """Execute what a message asks for, and answer it."""
        held = self.client.lease("pipelines", "default", "bench", 1000)
        mine = [message for message in held if message.id == message_id]
        if others := [message for message in held if message.id != message_id]:
            self.client.release(others)
        try:
            done = self.executor.execute(asked(mine[0]))
        except BaseException:
            self.client.release(mine)
            raise
        self.client.ack(mine)
        return done

    def sql(self, query: str, *values: Any) -> list[Any]:
        """Rows of a statement."""
        cursor = self.connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *values: Any) -> Any:
        """The one value."""
        return self.sql(query, *values)[0][0]

    def close(self) -> None:
        self.client.close()
