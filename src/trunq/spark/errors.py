"""What can go wrong on the Spark side.

    trunq.errors.TrunqError
    └── SparkError
        ├── JavaMissing          no Java that Spark can run on
        ├── CheckpointMismatch   the checkpoint belongs to another queue
        ├── DataLoss             messages that the query still needs are gone
        ├── DatabaseAway         Postgres cannot be reached from the source
        └── LakeError            the lake table
            ├── LakeUnwritable   disk full, directory read-only
            └── LakeMismatch     the table there has another schema

Raised inside Spark's worker processes, they reach the caller as text in a Py4J or streaming exception;
`trunq.spark.explain` finds them there.
"""

from __future__ import annotations

from trunq.errors import TrunqError


class SparkError(TrunqError):
    """Base of what goes wrong between Spark and trunq."""


class JavaMissing(SparkError):
    """No Java of version 17 or newer was found."""


class CheckpointMismatch(SparkError):
    """The checkpoint was written by a query over another queue."""


class DataLoss(SparkError):
    """Ticks that the query has still to read from are gone, or are not what the checkpoint says."""


class DatabaseAway(SparkError):
    """Postgres did not answer, also when asked again."""


class LakeError(SparkError):
    """The lake table cannot be used."""


class LakeUnwritable(LakeError):
    """The lake's directory takes no files: it is full, read-only or not a directory."""


class LakeMismatch(LakeError):
    """The lake table has other columns, or is partitioned by others, than what is written to it."""
