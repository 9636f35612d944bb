"""The options of `format("trunq")`, checked when a query is planned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunq.connection.address import address
from trunq.errors import InvalidArgument
from trunq.wire.name import check_name

ENGINES = ("auto", "adbc", "psycopg")
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
        known = {name.lower() for name in KNOWN}
        unknown = [name for name in given if name.lower() not in known and not name.startswith("__")]
        if unknown:
            raise InvalidArgument(
                f'format("trunq") has no option "{unknown[0]}"', f"its options: {', '.join(KNOWN)}"
            )
        if "dsn" in given and "service" in given:
            raise InvalidArgument("give dsn or service, not both")
        return cls(
            queue=_name(given, "queue", required=True) or "",
            dsn=f"service={_quote(given['service'])}" if "service" in given else given.get("dsn"),
            subscription=_name(given, "subscription"),
            starting_offsets=_one_of(given, "startingOffsets", ("earliest", "latest")),
            starting_tick=_number(given, "startingTick", 0),
            ending_tick=_number(given, "endingTick", 0),
            max_messages_per_trigger=_number(given, "maxMessagesPerTrigger", 1),
            min_partitions=_number(given, "minPartitions", 1),
            max_rows_per_partition=_number(given, "maxRowsPerPartition", 1) or 500_000,
            engine=_one_of(given, "engine", ENGINES) or "auto",
            kinds=_list(given, "kind"),
            keys=_list(given, "key"),
            pushdown=_flag(given, "pushdown", False),
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
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
        dsn = address(self.dsn)
        try:
            conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            # `from None`: libpq repeats what it cannot parse, which may be the password.
            raise InvalidArgument(
                "the database's address cannot be read",
                "it is postgresql://user@host:5432/database or host=... dbname=..., or the name of a service",
            ) from None
        return dsn


def _name(given: Mapping[str, Any], option: str, *, required: bool = False) -> str | None:
    value = given.get(option)
    if value is None:
        if required:
            raise InvalidArgument(f'format("trunq") needs the option {option}')
        return None
    check_name(option, value)
    return str(value)


def _number(given: Mapping[str, Any], option: str, least: int) -> int | None:
    value = given.get(option)
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
        raise InvalidArgument(f"{option} is a whole number from {least}, not {value!r}")
    return int(value)


def _one_of(given: Mapping[str, Any], option: str, choices: tuple[str, ...]) -> str | None:
    value = given.get(option)
    if value is not None and value not in choices:
        raise InvalidArgument(f"{option} is {' or '.join(choices)}, not {value!r}")
    return value


def _flag(given: Mapping[str, Any], option: str, default: bool) -> bool:
    value = str(given.get(option, default)).lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"{option} is true or false, not {value!r}")
    return value == "true"


def _list(given: Mapping[str, Any], option: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.get(option, "").split(",") if part.strip())


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
