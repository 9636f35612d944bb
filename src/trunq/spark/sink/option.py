"""The options of `format("trunq")` as a sink, checked before a query computes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trunq.arrow.catalog import identifier
from trunq.arrow.mark import SCHEMA
from trunq.errors import InvalidArgument
from trunq.spark.option import ENGINES, a_dsn, a_flag, a_list, a_name, a_number, find, one_of, refuse_unknown

STAGED: Final = "staged"
PARTITION: Final = "partition"
DIRECT: Final = "direct"

MESSAGE: Final = {
    "payload": "payloadColumn",
    "body": "bodyColumn",
    "kind": "kindColumn",
    "key": "keyColumn",
    "headers": "headersColumn",
    "priority": "priorityColumn",
    "due_at": "dueAtColumn",
    "delay": "delayColumn",
    "unique_key": "uniqueKeyColumn",
    "options": "optionsColumn",
}
"""The parts of a message, and the option that names the column of each."""

ALL: Final = "*"
"""As payloadColumn: the payload is an object of all columns."""

OF_TABLES: Final = ("table", "upsertKey", "newest", "createTable")
OF_QUEUES: Final = ("queue", "kind", *MESSAGE.values())
KNOWN: Final = (
    "dsn",
    "service",
    *OF_TABLES,
    *OF_QUEUES,
    "txnAppId",
    "txnVersion",
    "commitProtocol",
    "stageSchema",
    "engine",
    "checkpointLocation",
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user gave; `repr` shows no address. It travels to the tasks, which look the address up."""

    table: str | None = None
    queue: str | None = None
    dsn: str | None = field(default=None, repr=False)
    upsert_key: tuple[str, ...] = ()
    newest: str | None = None
    create_table: bool = True
    kind: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    app_id: str | None = None
    version: int | None = None
    protocol: str = STAGED
    stage_schema: str = SCHEMA
    engine: str = "auto"

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SinkOptions:
        """Reads Spark's options; raises `InvalidArgument` for a wrong one."""
        refuse_unknown(given, KNOWN, "as a sink ")
        if ("table" in given) == ("queue" in given):
            raise InvalidArgument('format("trunq") as a sink needs the option table, or queue: one of them')
        other = OF_QUEUES if "table" in given else OF_TABLES
        if wrong := [name for name in other if name in given]:
            what = "a table" if "table" in given else "a queue"
            raise InvalidArgument(f"{wrong[0]} is no option for {what}")
        if "table" in given:
            identifier(given["table"])
        return cls(
            table=given.get("table"),
            queue=a_name(given, "queue"),
            dsn=a_dsn(given),
            upsert_key=a_list(given, "upsertKey"),
            newest=given.get("newest"),
            create_table=a_flag(given, "createTable", True),
            kind=given.get("kind"),
            columns={part: given[option] for part, option in MESSAGE.items() if option in given},
            app_id=given.get("txnAppId"),
            version=a_number(given, "txnVersion", 0),
            protocol=one_of(given, "commitProtocol", (STAGED, PARTITION, DIRECT)) or STAGED,
            stage_schema=given.get("stageSchema", SCHEMA),
            engine=one_of(given, "engine", ENGINES) or "auto",
        ).checked()

    def checked(self) -> SinkOptions:
        """Refuses options that contradict each other."""
        if self.newest and not self.upsert_key:
            raise InvalidArgument("newest says which row of a key is kept: give upsertKey, too")
        if self.upsert_key and self.protocol != STAGED:
            raise InvalidArgument(
                f"commitProtocol {self.protocol} only adds rows", "upsertKey needs commitProtocol staged"
            )
        if self.app_id is not None and not 0 < len(self.app_id.encode()) <= 1000:
            raise InvalidArgument("txnAppId is a text of 1 to 1000 bytes")
        if self.protocol == DIRECT and (self.app_id, self.version) != (None, None):
            raise InvalidArgument(
                "commitProtocol direct keeps no mark: a repeated version would be added again",
                "leave txnAppId and txnVersion out, or choose the protocol staged or partition",
            )
        if self.kind is not None and "kind" in self.columns:
            raise InvalidArgument("give kind, for all messages, or kindColumn, not both")
        return self

    def for_batch(self, overwrite: bool) -> SinkOptions:
        """Refuses what a batch cannot do."""
        if (self.app_id is None) != (self.version is None):
            raise InvalidArgument(
                "give txnAppId and txnVersion, or neither",
                "a repeated version of the same txnAppId adds nothing",
            )
        self._check_overwrite(overwrite, 'mode("append") adds messages')
        return self

    def for_stream(self, overwrite: bool) -> SinkOptions:
        """Refuses what a stream cannot do."""
        if self.version is not None:
            raise InvalidArgument(
                "txnVersion is for batches: a stream counts its batches itself",
                "leave it out; txnAppId may stand for the id of the query",
            )
        self._check_overwrite(overwrite, 'use outputMode("append")')
        return self

    def _check_overwrite(self, overwrite: bool, advice: str) -> None:
        if not overwrite:
            return
        if self.queue is not None:
            raise InvalidArgument(f'queue "{self.queue}" cannot be overwritten', advice)
        if self.protocol != STAGED:
            raise InvalidArgument(
                f"commitProtocol {self.protocol} only adds rows", "to overwrite needs commitProtocol staged"
            )
        if self.upsert_key:
            raise InvalidArgument("a table is overwritten or upserted into, not both", "leave upsertKey out")

    def address(self) -> str:
        """The address of the database: the option, else the settings of the process that asks."""
        return find(self.dsn)
