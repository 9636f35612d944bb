"""The client: one method per function of the database, with the names of its parameters.

Most only pass them on: those are in `passing`, which tools/client.py generates from the functions.
"""

from __future__ import annotations

from trunq.client._async.conversion import AsyncConversions
from trunq.client._async.delete import AsyncDeleting
from trunq.client._async.log.listen import AsyncListens
from trunq.client._async.log.publish import AsyncPublishing
from trunq.client._async.log.schedule import AsyncSchedules
from trunq.client._async.log.unique import AsyncUniqueKeys
from trunq.client._async.memo import AsyncMemos
from trunq.client._async.passing import AsyncPassing
from trunq.client._async.pipeline import AsyncPipelines
from trunq.client._async.stream.batch import AsyncBatches
from trunq.client._async.stream.reading import AsyncReadings
from trunq.client._async.tenant import AsyncTenants
from trunq.client._async.work.answer import AsyncAnswers
from trunq.client._async.work.bell import AsyncBells
from trunq.client._async.work.cancel import AsyncCancelling
from trunq.client._async.work.lease import AsyncLeases
from trunq.client._async.work.progress import AsyncReporting
from trunq.client._async.work.reply import AsyncResults
from trunq.wire.habit import ClientHabits


class AsyncClient(
    AsyncTenants,
    AsyncSchedules,
    AsyncPipelines,
    AsyncUniqueKeys,
    AsyncPublishing,
    AsyncResults,
    AsyncMemos,
    AsyncListens,
    AsyncLeases,
    AsyncAnswers,
    AsyncReporting,
    AsyncReadings,
    AsyncBatches,
    AsyncBells,
    AsyncCancelling,
    AsyncDeleting,
    AsyncConversions,
    AsyncPassing,
    ClientHabits,
):
    """Everything trunq does.

        async with AsyncClient("postgresql://...") as client:
            async with client.transaction() as connection:
                await connection.execute("insert into orders ...")
                await client.publish("mail", {"order": 1}, connection=connection)

    `database` is a connection string (none: TRUNQ_DSN, trunq.toml, or libpq's defaults; connections are
    opened at the first call, up to `max_connections`; a call waits `timeout` seconds for one), or an open
    pool of yours. `injectors` are functions (queue, headers) -> headers, called in their order for each
    message that is published; what `headers=` says stands. `payload_types` are pydantic models or
    dataclasses by kind; a payload that does not fit is refused. With `telemetry`, calls that publish, lease
    and answer have spans of OpenTelemetry, and messages carry the trace in which they were published.

    Every method takes `connection=`, whose transaction it joins: a psycopg connection, a session or
    connection of SQLAlchemy, or, where nothing is async, Django's connection or its alias. Without one it is
    a transaction of its own. Lengths of time are timedeltas or seconds. An argument left out is decided by
    the database.

    The first call raises SchemaMissing, SchemaOlder or SchemaNewer when the database does not fit this
    version; what a function refuses is raised as in `trunq.errors`; a database that is away as
    psycopg.OperationalError.
    """
