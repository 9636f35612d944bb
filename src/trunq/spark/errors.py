"""What can go wrong on the Spark side.

    trunq.errors.TrunqError
    └── SparkError
        ├── JavaMissing          no Java that Spark can run on
        ├── PythonMismatch       executors have another Python than the driver
        ├── CheckpointMismatch   the checkpoint belongs to another queue
        ├── DataLoss             messages that the query still needs are gone
        ├── DatabaseAway         Postgres cannot be reached from the source
        ├── NeedsPrimary         a stream was started on a standby
        ├── SinkMismatch         the rows do not fit the table or queue that they are written into
        ├── SinkRefused          Postgres refused rows
        ├── StageLost            staged rows are gone: the batch is to be repeated
        └── LakeError            the lake table
            ├── LakeUnwritable   disk full, directory read-only
            └── LakeMismatch     the table there has another schema

An error raised inside one of Spark's worker processes reaches the caller as text in a Py4J or streaming
exception. `trunq.spark.explain` finds it there; `told` raises it as what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from trunq import errors
from trunq.errors import TrunqError
from trunq.explanation import recognise_spark


class SparkError(TrunqError):
    """Base of what goes wrong between Spark and trunq."""


class JavaMissing(SparkError):
    """No Java of version 17 or newer was found."""


class PythonMismatch(SparkError):
    """Executors have another minor version of Python than the driver."""


class CheckpointMismatch(SparkError):
    """The checkpoint was written by a query over another queue."""


class DataLoss(SparkError):
    """Ticks that the query has still to read from are gone, or are not what the checkpoint says."""


class DatabaseAway(SparkError):
    """Postgres did not answer, even after several tries."""


class NeedsPrimary(SparkError):
    """A stream writes its position, so it cannot read from a standby."""


class SinkMismatch(SparkError):
    """The rows have other columns, or other types, than the table or queue takes."""


class SinkRefused(SparkError):
    """Postgres refused the rows, in words of its own."""


class StageLost(SparkError):
    """Rows that were staged are not there: the server crashed meanwhile. Nothing was written."""


class LakeError(SparkError):
    """The lake table cannot be used."""


class LakeUnwritable(LakeError):
    """The lake's directory takes no files: it is full, read-only or not a directory."""


class LakeMismatch(LakeError):
    """The table has other columns or other partition columns than the rows written to it."""


@contextmanager
def translating() -> Iterator[None]:
    """Raises an error that comes out of Spark as the error of trunq that it began as.

    What Spark itself ran into is a `SparkError`, if it is known what to do about it; other errors stay as
    they are. Spark's exception is the `__context__`; a traceback does not show it.
    """
    try:
        yield
    except (TrunqError, psycopg.Error):
        raise
    except Exception as error:
        found = recognise_spark(error)
        if found is None:
            raise
        kind = globals().get(found.kind or "SparkError") or vars(errors).get(str(found.kind), SparkError)
        raise kind(found.reason, found.advice) from None
