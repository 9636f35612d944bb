"""What the database knows of its queues, as Prometheus and OpenMetrics read it.

One process of a database serves them (`trunq leader --metrics 9090`, or `trunq web`), never each worker:
they are figures of the database, and would be summed as often as they are scraped. Counters are kept there,
and no restart resets one.

    figure   which there are: their names, labels and texts, from rows
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import psycopg
from psycopg import AsyncConnection

from trunq.client._async import AsyncClient
from trunq.connection._async.execute import execute
from trunq.connection.backoff import first_line
from trunq.connection.outage import Said
from trunq.diagnosis import async_rights
from trunq.errors import InvalidArgument
from trunq.metrics.figure import FIGURE, OF_SIZES, Known, Total, families
from trunq.record import LatestSample
from trunq.wire.call import Call

log = logging.getLogger("trunq.metrics")

_KNOWN_FOR: Final = 4.0
"""Seconds for which figures are given again: many who scrape cost what one does."""
_SIZES_FOR: Final = 60.0
_WITHIN: Final = 8.0
"""Seconds for a database to answer; most who scrape wait for ten."""


class _Kept(NamedTuple):
    """What was read of a database, and when."""

    known: Known
    at: float
    sizes_at: float


class Metrics:
    """Reads the figures of databases, while it is entered; `databases` gives their addresses by what they are
    called. Raises InvalidArgument without prometheus_client.
    """

    def __init__(self, databases: Callable[[], Mapping[str, str]]) -> None:
        self._choose = _chooser()
        self._databases = databases
        self._clients: dict[str, AsyncClient] = {}
        self._kept: dict[str, _Kept] = {}
        self._reading = asyncio.Lock()
        self._said = Said()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            await client.close()

    async def page(self, accept: str = "") -> tuple[str, bytes]:
        """The type of the text and the text, as whoever asks accepts it. A database that is away has
        `trunq_up` 0, and no other figure; of one that the role may not see, `trunq_refused` names the grant.
        """
        async with self._reading:
            databases = dict(self._databases())
            for dsn in [each for each in self._clients if each not in databases.values()]:
                await self._clients.pop(dsn).close()
                self._kept.pop(dsn, None)
            read = await asyncio.gather(*(self._read(label, dsn) for label, dsn in databases.items()))
        encode, type = self._choose(accept)
        return type, encode(_Registry(families(dict(zip(databases, read, strict=True)))))

    async def _read(self, label: str, dsn: str) -> Known | None:
        kept = self._kept.get(dsn)
        if kept is not None and kept.at > monotonic() - _KNOWN_FOR:
            return kept.known
        client = self._clients.setdefault(dsn, AsyncClient(dsn, max_connections=1))
        has_sizes = kept is not None and kept.sizes_at > monotonic() - _SIZES_FOR
        try:
            async with asyncio.timeout(_WITHIN):
                known = await _ask(client, sizes=not has_sizes)
        except Exception as error:
            why = first_line(error) or type(error).__name__
            if self._said.is_new(dsn, why):
                log.warning("no figures of %s: %s", label, why)
            self._kept.pop(dsn, None)
            return None
        if not known.is_seen and self._said.is_new(dsn, told := refusal(known)):
            log.warning("no figures of %s: %s", label, told)
        if has_sizes and kept is not None:
            sizes = [each for each in kept.known.figures if each[0] in OF_SIZES]
            known = known._replace(figures=[*known.figures, *sizes])
        sizes_at = kept.sizes_at if has_sizes and kept is not None else monotonic()
        self._kept[dsn] = _Kept(known, monotonic(), sizes_at)
        return known


async def _ask(client: AsyncClient, *, sizes: bool) -> Known:
    async with client.transaction() as connection:
        return await look(client, connection, sizes=sizes)


async def look(client: AsyncClient, connection: AsyncConnection[Any], *, sizes: bool) -> Known:
    """Read the figures of a database. A role that does not own trunq sees samples of the queues that it may
    read, and no others; it is told what shows it all.
    """
    samples: Sequence[LatestSample] = []
    is_seen = False
    try:
        async with connection.transaction():
            samples = await client.latest_samples(connection=connection)
        is_seen = True
        async with connection.transaction():
            totals = await execute(connection, Call("_list_totals", {}, Total._fields))
            figures = await execute(connection, Call("_list_figures", {"sizes": str(sizes)}, FIGURE))
    except psycopg.errors.InsufficientPrivilege:
        return (await refused(connection))._replace(samples=samples, is_seen=is_seen)
    return Known(samples, [Total._make(row) for row in totals], figures)


async def refused(connection: AsyncConnection[Any]) -> Known:
    """What a role knows that may not look: the grant that it lacks."""
    held = await async_rights(connection)
    return Known([], [], [], held and held.grant, is_seen=False)


def refusal(known: Known) -> str:
    """Why there are no figures, and what helps."""
    return f"the role may not look: {known.grant} shows all, trunq.grant_role as reader those of a queue"


def page_of(database: str, known: Known | None, accept: str = "") -> tuple[str, bytes]:
    """The type of the text and the text, of one database; None: it is away. Raises InvalidArgument without
    prometheus_client.
    """
    encode, type = _chooser()(accept)
    return type, encode(_Registry(families({database: known})))


def _chooser() -> Any:
    """What finds the encoder that suits who asks."""
    try:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  # only where asked for
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            "metrics need prometheus_client, which is not installed", "pip install 'trunq[metrics]'"
        ) from error
    return choose_encoder


class _Registry:
    """What the encoders of prometheus_client take."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        """All that there is."""
        return self._families
