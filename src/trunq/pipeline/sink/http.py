"""An HTTP API that takes rows: staged in the database of trunq, and sent when all of them are.

So nobody is sent rows of an attempt that fails. The first attempt that begins to send is the run's: whoever
comes after it sends on from the place that it noted after each request. At least once: a request whose answer
was lost, or whose place was not noted, is sent again, under the same Idempotency-Key.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pyarrow as pa
from psycopg import sql
from standardwebhooks import Webhook

from trunq.arrow import mark
from trunq.arrow.catalog import Connection, is_there
from trunq.arrow.statement import PART
from trunq.arrow.value import json_rows
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.api import HttpSink as Model
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import RunCancelled, RunOver
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.pace import Pace
from trunq.pipeline.request import Api
from trunq.pipeline.sink.table import PostgresSink, stage_of
from trunq.wire.signing import signing_key

_STAGED: Final = pa.schema([("at", pa.int64()), ("payload", pa.string())])
_SENDING: Final = b"""create table if not exists trunq_sink.sending (
  mark text primary key, number bigint not null, attempt bigint not null, parts text[] not null,
  sender text not null, part integer not null default 0, at bigint not null default 0
)"""
_LOOK_EVERY: Final = 1.0
_REFUSED: Final = (400, 422)


@dataclass(slots=True)
class _Sending:
    """How far an attempt is sent: the number of its part, and of the last row."""

    attempt: int
    parts: list[str]
    part: int
    at: int


class HttpSink(PostgresSink):
    """An API, which rows are sent to outside of a transaction."""

    _LOGGED = True  # rows that are sent in part must not be lost by a crash of Postgres

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        self._model = pipeline.sink
        self._sender = str(uuid.uuid4())
        self._looked_at = 0.0
        self._signer = None if self._model.sign is None else _signer(pipeline.name, self._model.sign)

    def check(self) -> None:
        """Whether the API takes rows, only rows show."""

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:  # noqa: ARG002  # any rows are JSON
        super().begin(run, _STAGED)
        with self._connected() as connection:
            query = sql.SQL("create index on {} ({}, at)")
            connection.execute(query.format(stage_of(run), sql.Identifier(PART)))
        return None

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        return super().stage(run, part, _numbered(batches))

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        with self._connected() as connection:
            mark.make_marks(connection)
            connection.execute(_SENDING)
            sending = self._claim(connection, run, parts, rows)
            if sending is None:
                return False
            if sending.attempt:
                self._send_all(connection, run, sending)
            self._end(connection, run, sending)
        return sending.attempt == run.attempt

    def discard(self, run: Run) -> None:
        with self._connected() as connection:
            is_sent = (
                is_there(connection, "trunq_sink.sending")
                and connection.execute(
                    "select 1 from trunq_sink.sending where mark = %s and attempt = %s",
                    (run.mark, run.attempt),
                ).fetchone()
            )
        if not is_sent:
            super().discard(run)

    def clear(self, run: Run) -> bool:
        with self._connected() as connection:
            if is_there(connection, "trunq_sink.sending"):
                # Of a run that is over, no more is sent.
                query = "delete from trunq_sink.sending where mark = %s and number < %s"
                connection.execute(query, (run.mark, run.number))
        return super().clear(run)

    def _claim(self, connection: Connection, run: Run, parts: list[str], rows: int) -> _Sending | None:
        """What is to be sent, from now on by us alone: the attempt that was begun, or this one.

        None: the run is over. An attempt of 0 is a run that was cancelled.
        """
        with connection.transaction():
            if self._lock_mark(connection, run) >= run.number:
                return None
            if not run.attempt:
                return _Sending(0, [], 0, 0)
            row = connection.execute(
                "update trunq_sink.sending set sender = %s where mark = %s and number = %s"
                " returning attempt, parts, part, at",
                (self._sender, run.mark, run.number),
            ).fetchone()
            if row is not None:
                return _Sending(*row)
            if parts:
                self._require_all(connection, run, parts, rows)
            connection.execute(
                "insert into trunq_sink.sending (mark, number, attempt, parts, sender)"
                " values (%s, %s, %s, %s, %s)"
                " on conflict (mark) do update set number = excluded.number, attempt = excluded.attempt,"
                " parts = excluded.parts, sender = excluded.sender, part = 0, at = 0",
                (run.mark, run.number, run.attempt, parts, self._sender),
            )
            return _Sending(run.attempt, parts, 0, 0)

    def _send_all(self, connection: Connection, run: Run, sending: _Sending) -> None:
        query = sql.SQL(
            "select at, payload from {} where {} = %s and at > %s order by at limit %s"
        ).format(stage_of(run, sending.attempt), sql.Identifier(PART))  # fmt: skip
        pace = Pace(self._pipeline, self._model, lambda query, values: _one(connection, query, values))
        with Api(self._pipeline, self._model, pace, lambda: self._look(connection, run)) as api:
            while sending.part < len(sending.parts):
                given = (sending.parts[sending.part], sending.at, self._model.batch)
                rows = connection.execute(query, given).fetchall()
                if not rows:
                    sending.part, sending.at = sending.part + 1, 0
                    continue
                refused = self._send(api, run, sending, [payload for _, payload in rows])
                sending.at = rows[-1][0]
                self._note(connection, run, sending, rows[0][1], refused)

    def _send(self, api: Api, run: Run, sending: _Sending, payloads: list[str]) -> str | None:
        """Send some rows; why the API refuses the one, which is to be quarantined."""
        body = self._body(payloads).encode()
        place = f"{sending.part}:{sending.at}:".encode()
        digest = hashlib.sha256(place + body).hexdigest()[:32]
        key = f"{run.mark.replace('/', '-')}-{run.number}-{digest}"
        headers = {"Idempotency-Key": key}
        answer = api.send(
            self._model.method, httpx.URL(self._model.url), body, headers, lambda: self._signed(key, body)
        )
        if answer.status < 300:
            return None
        if answer.status in _REFUSED and self._model.otherwise == "quarantine":
            return api.hide(f"the API answers {answer.status}: {answer.start}")
        api.refuse(answer)
        return None

    def _signed(self, key: str, body: bytes) -> dict[str, str]:
        """Headers by which the other side knows who sent it, and when."""
        if self._signer is None:
            return {}
        now = dt.datetime.now(dt.UTC)
        return {
            "webhook-id": key,
            "webhook-timestamp": str(math.floor(now.timestamp())),
            "webhook-signature": self._signer.sign(key, now, body.decode()),
        }

    def _body(self, payloads: list[str]) -> str:
        shape = self._model.shape or ("row" if self._model.batch == 1 else "rows")
        if shape == "row":
            return payloads[0]
        array = f"[{', '.join(payloads)}]"
        return array if shape == "array" else f'{{"rows": {array}}}'

    def _note(
        self, connection: Connection, run: Run, sending: _Sending, row: str, refused: str | None
    ) -> None:
        with connection.transaction():
            cursor = connection.execute(
                "update trunq_sink.sending set part = %s, at = %s where mark = %s and sender = %s",
                (sending.part, sending.at, run.mark, self._sender),
            )
            if not cursor.rowcount:
                raise RunOver(f"run {run.number} of pipeline {run.pipeline} is sent by another")
            if refused is not None:
                connection.execute(
                    "select trunq._refuse_staged(%s::bigint, %s, %s::jsonb)", (sending.attempt, refused, row)
                )

    def _look(self, connection: Connection, run: Run) -> None:
        """Each second: whether the run goes on, and is sent by us."""
        now = time.monotonic()
        if now < self._looked_at + _LOOK_EVERY:
            return
        self._looked_at = now
        row = connection.execute(
            "select r.is_cancelled, s.sender from trunq.pipeline_run r"
            " join trunq_sink.sending s on s.mark = %s where r.run_id = %s and r.ended_at is null",
            (run.mark, run.run_id),
        ).fetchone()
        if row is None or row[1] != self._sender:
            raise RunOver(f"run {run.number} of pipeline {run.pipeline} is sent by another")
        if row[0]:
            raise RunCancelled(f"run {run.number} of pipeline {run.pipeline} is cancelled")

    def _end(self, connection: Connection, run: Run, sending: _Sending) -> None:
        with connection.transaction():
            if self._lock_mark(connection, run) >= run.number:
                return
            self._set_mark(connection, run, sending.attempt)
            row = connection.execute(
                "delete from trunq_sink.sending where mark = %s returning attempt", (run.mark,)
            ).fetchone()
            for attempt in {run.attempt, sending.attempt, row[0] if row else 0} - {0}:
                connection.execute(sql.SQL("drop table if exists {}").format(stage_of(run, attempt)))


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as JSON texts, in their order."""
    at = 0
    for batch in batches:
        numbers = pa.array(range(at + 1, at + batch.num_rows + 1), pa.int64())
        yield pa.RecordBatch.from_arrays([numbers, json_rows(batch)], schema=_STAGED)
        at += batch.num_rows


def _one(connection: Connection, query: bytes, values: Mapping[str, Any]) -> Any:
    row = connection.execute(query, values).fetchone()
    return row and row[0]


def _signer(pipeline: str, secret: str) -> Webhook:
    try:
        return Webhook(signing_key("sink.sign", secret))
    except InvalidArgument as error:
        raise InvalidPipeline(f"pipeline {pipeline}: {error.message}", error.hint) from None
