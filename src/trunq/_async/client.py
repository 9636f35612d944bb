"""The client: one method per function of the database, with the names of its parameters."""

from __future__ import annotations

from trunq._async.answer import AsyncAnswers
from trunq._async.batch import AsyncBatches
from trunq._async.bell import AsyncBells
from trunq._async.dead import AsyncDead
from trunq._async.delayed import AsyncDelayed
from trunq._async.gate import AsyncGates
from trunq._async.history import AsyncHistory
from trunq._async.lane import AsyncLanes
from trunq._async.leader import AsyncLeading
from trunq._async.lease import AsyncLeases
from trunq._async.limit import AsyncLimits
from trunq._async.pause import AsyncPauses
from trunq._async.publish import AsyncPublishing
from trunq._async.queue import AsyncQueues
from trunq._async.rotate import AsyncRotation
from trunq._async.status import AsyncStatuses
from trunq._async.subscription import AsyncSubscriptions
from trunq._async.tick import AsyncTicks


class AsyncClient(
    AsyncQueues,
    AsyncSubscriptions,
    AsyncPauses,
    AsyncLimits,
    AsyncPublishing,
    AsyncGates,
    AsyncLeases,
    AsyncLanes,
    AsyncAnswers,
    AsyncTicks,
    AsyncBatches,
    AsyncBells,
    AsyncDelayed,
    AsyncDead,
    AsyncHistory,
    AsyncStatuses,
    AsyncRotation,
    AsyncLeading,
):
    """Everything trunq does.

        async with AsyncClient("postgresql://...") as client:
            async with client.transaction() as connection:
                await connection.execute("insert into orders ...")
                await client.publish("mail", {"order": 1}, connection=connection)

    `database` is a connection string (none: TRUNQ_DSN, trunq.toml, or libpq's defaults; connections are
    opened at the first call, up to `max_connections`; a call waits `timeout` seconds for one), or an open
    pool of yours. Every method takes `connection=`, a psycopg connection whose transaction it joins;
    without one it is a transaction of its own. Lengths of time are timedeltas or seconds. An argument left
    out is decided by the database.

    The first call raises SchemaMissing, SchemaOlder or SchemaNewer when the database does not fit this
    version; what a function refuses is raised as in `trunq.errors`; a database that is away as
    psycopg.OperationalError.
    """
