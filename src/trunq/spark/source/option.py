"""The options of `format("trunq")`, checked when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from trunq.errors import InvalidArgument
from trunq.spark.option import (
    ENGINES,
    a_dsn,
    a_flag,
    a_list,
    a_name,
    a_number,
    find,
    one_of,
    refuse_unknown,
)
from trunq.word import Start

KNOWN = (
    "dsn",
    "service",
    "queue",
    "subscription",
    "startingOffsets",
    "startingTick",
    "endingTick",
    "maxMessagesPerTrigger",
    "minPartitions",
    "maxRowsPerPartition",
    "engine",
    "kind",
    "key",
    "pushdown",
    "failOnDataLoss",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options that the user gave.

    An address from the environment or a service file is looked up where it is used, so it never travels with
    the query plan; `repr` shows no address.
    """

    queue: str
    dsn: str | None = field(default=None, repr=False)
    subscription: str | None = None
    starting_offsets: str | None = None
    starting_tick: int | None = None
    ending_tick: int | None = None
    max_messages_per_trigger: int | None = None
    min_partitions: int | None = None
    max_rows_per_partition: int = 500_000
    engine: str = "auto"
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pushdown: bool = False
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Reads Spark's options, whose names are in lower case; raises `InvalidArgument` for a wrong one."""
        refuse_unknown(given, KNOWN, "as a source ")
        return cls(
            queue=a_name(given, "queue", required=True) or "",
            dsn=a_dsn(given),
            subscription=a_name(given, "subscription"),
            starting_offsets=one_of(given, "startingOffsets", tuple(sorted(get_args(Start)))),
            starting_tick=a_number(given, "startingTick", 0),
            ending_tick=a_number(given, "endingTick", 0),
            max_messages_per_trigger=a_number(given, "maxMessagesPerTrigger", 1),
            min_partitions=a_number(given, "minPartitions", 1),
            max_rows_per_partition=a_number(given, "maxRowsPerPartition", 1) or 500_000,
            engine=one_of(given, "engine", ENGINES) or "auto",
            kinds=a_list(given, "kind"),
            keys=a_list(given, "key"),
            pushdown=a_flag(given, "pushdown", False),
            fail_on_data_loss=a_flag(given, "failOnDataLoss", True),
        ).checked()

    def checked(self) -> Options:
        """Refuses options that contradict each other."""
        if self.starting_tick is not None and self.starting_offsets is not None:
            raise InvalidArgument("give startingTick or startingOffsets, not both")
        if self.ending_tick is not None and self.ending_tick < (self.starting_tick or 0):
            raise InvalidArgument(
                f"endingTick {self.ending_tick} lies before startingTick {self.starting_tick}"
            )
        return self

    def address(self) -> str:
        """The address of the database: the option, else the settings of the process that asks."""
        return find(self.dsn)
