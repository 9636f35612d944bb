"""trunq pipeline compact: the small files of a Delta table, merged now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import say, write_json
from trunq.cli.pipeline.pipeline import Name, app
from trunq.cli.pipeline.sight import compacted_words


@option.verb(
    app,
    "compact",
    "trunq pipeline compact orders",
    "# That of an instance",
    "trunq pipeline compact orders/acme",
)
def compact(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Merge small files of a pipeline's Delta table, and delete old ones.

    Runners do it by themselves, after each `compact` runs (100). This does it here and now, beside runs, and
    says what goes wrong.
    """
    from trunq.pipeline.compaction import compact_now  # noqa: PLC0415  # slow to import
    from trunq.pipeline.control import Control  # noqa: PLC0415

    with client(database) as trunq:
        done = compact_now(Control(trunq), name)
    told: dict[str, Any] | None = None if done is None else asdict(done)
    if json:
        write_json(told)
    elif told is None:
        say("Another process compacts the table of pipeline {name}.", name=name)
    else:
        say("Compaction of pipeline {name}: {done}.", name=name, done=compacted_words(told))
