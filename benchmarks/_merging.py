"""One merge in a process of its own, and what that took: `python _merging.py ARM JSON`, where the JSON has
the arguments of the arm's function.

An arm imports what it needs and nothing of the other's. It prints one line of JSON: seconds of a processor of
the run, and of the whole process with its imports; MiB of memory at its peak.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

Work = Callable[[], object]


def ours(dsn: str, pipeline: str) -> Work:
    """A run of a pipeline, by its executor in this process."""
    from trunq import Client  # noqa: PLC0415  # each arm imports its own
    from trunq.pipeline.run import Executor  # noqa: PLC0415
    from trunq.pipeline.runner import asked  # noqa: PLC0415

    def run() -> None:
        with Client(dsn, max_connections=4) as client:
            message = client.run_pipeline(pipeline)
            held = client.lease("pipelines", "default", "bench", 100)
            (mine,) = [each for each in held if each.id == message]
            done = Executor(client, dsn).execute(asked(mine))
            client.ack([mine])
        assert done["outcome"] == "done", done

    return run


def theirs(url: str, table: str, directory: str) -> Work:
    """A run of dlt: its SQL source by a cursor, its filesystem's Delta table, upsert."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt  # noqa: PLC0415  # each arm imports its own
    from dlt.sources.sql_database import sql_table  # noqa: PLC0415

    place = Path(directory)
    made = dlt.pipeline(
        "merge",
        destination=dlt.destinations.filesystem(bucket_url=(place / "tables").as_uri()),
        dataset_name="by_dlt",
        pipelines_dir=str(place / "pipelines"),
    )

    def run() -> None:
        cursor = dlt.sources.incremental("changed_at")
        rows = sql_table(url, table=table, backend="pyarrow", chunk_size=50_000, incremental=cursor)
        rows.apply_hints(
            table_name=table,
            primary_key="id",
            write_disposition={"disposition": "merge", "strategy": "upsert"},
            table_format="delta",
        )
        made.run(rows).raise_on_failed_jobs()

    return run


_ARMS: Final[dict[str, Callable[..., Work]]] = {"ours": ours, "dlt": theirs}


def _taken() -> float:
    """Seconds of a processor: of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def _peak() -> float:
    """MiB: of this process since it began, and of the largest of its children."""
    # Of a process that was forked, getrusage counts what its parent had.
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def _main() -> None:
    with redirect_stdout(sys.stderr):
        work = _ARMS[sys.argv[1]](**json.loads(sys.argv[2]))
        before = _taken()
        work()
    done = _taken()
    print(json.dumps({"run": done - before, "whole": done, "peak": _peak()}))


if __name__ == "__main__":
    _main()
