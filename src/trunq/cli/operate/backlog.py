"""trunq backlog: one number for scaling."""

from __future__ import annotations

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import out, write_json

EXAMPLES = ("trunq backlog orders", "trunq backlog orders -s mail --json")


def backlog(
    queue: option.Queue,
    subscription: option.Subscription = "default",
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Print how many messages a subscription has for its workers: ready and leased, at most 10,000.

    Use it to scale workers. A scaler that counts only ready messages removes the worker whose handler
    still runs.
    """
    with client(database) as trunq:
        count = trunq.backlog(queue, subscription)
    write_json({"backlog": count}) if json else out.print(str(count), highlight=False)
