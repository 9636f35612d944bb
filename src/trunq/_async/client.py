"""The client: one method per function of the database, with the names of its parameters.

Most only pass them on: those are in `passing`, which tools/client.py generates from the functions.
"""

from __future__ import annotations

from trunq._async.answer import AsyncAnswers
from trunq._async.batch import AsyncBatches
from trunq._async.bell import AsyncBells
from trunq._async.cancel import AsyncCancelling
from trunq._async.delete import AsyncDeleting
from trunq._async.gate import AsyncGates
from trunq._async.lease import AsyncLeases
from trunq._async.memo import AsyncMemos
from trunq._async.mover import AsyncMovers
from trunq._async.passing import AsyncPassing
from trunq._async.pipeline import AsyncPipelines
from trunq._async.progress import AsyncReporting
from trunq._async.publish import AsyncPublishing
from trunq._async.reading import AsyncReadings
from trunq._async.reply import AsyncResults
from trunq._async.schedule import AsyncSchedules
from trunq._async.tenant import AsyncTenants
from trunq._async.unique import AsyncUniqueKeys
from trunq.wire.habit import ClientHabits


class AsyncClient(
    AsyncTenants,
    AsyncSchedules,
    AsyncPipelines,
    AsyncUniqueKeys,
    AsyncPublishing,
    AsyncResults,
    AsyncMemos,
    AsyncGates,
    AsyncLeases,
    AsyncAnswers,
    AsyncReporting,
    AsyncReadings,
    AsyncBatches,
    AsyncMovers,
    AsyncBells,
    AsyncCancelling,
    AsyncDeleting,
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
    dataclasses by kind; a payload that does not fit is refused.

    Every method takes `connection=`, whose transaction it joins: a psycopg connection, a session or
    connection of SQLAlchemy, or, where nothing is async, Django's connection or its alias. Without one it is
    a transaction of its own. Lengths of time are timedeltas or seconds. An argument left out is decided by
    the database.

    The first call raises SchemaMissing, SchemaOlder or SchemaNewer when the database does not fit this
    version; what a function refuses is raised as in `trunq.errors`; a database that is away as
    psycopg.OperationalError.
    """
