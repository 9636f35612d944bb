"""The functions of the database, and how each is called: by the client, the worker, the leader and Spark.

A call names its arguments and leaves out those that are None: what is not given, the database decides. The
verbs of a queue's hot path are functions of its own, `trunq_queue.<queue>_<verb>`; all others are
`trunq.<function>` with the queue's name as an argument. That is known here and nowhere else.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from types import TracebackType
from typing import Any, Final

import psycopg

from trunq.errors import Diagnosis, InvalidArgument, Translated
from trunq.wire.array import Array
from trunq.wire.name import check_name
from trunq.wire.scalar import plain
from trunq.word import VERBS

AT_ONCE: Final = 50
"""How many statements of the hot path are prepared at their first use. Others wait for psycopg's own rule (a
fifth use): it keeps 100 on a connection, and a program that works on more queues would have each call
prepare one and drop another.
"""


class Call:
    """One call: its statement, and the values of its parameters."""

    __slots__ = (
        "arguments",
        "columns",
        "function",
        "has_arrays",
        "is_raw",
        "name",
        "prepare",
        "statement",
        "values",
    )

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        columns: tuple[str, ...] = (),
        *,
        raw: bool = False,
    ) -> None:
        """`columns` are those wanted of a function that returns rows; with `raw`, rows come as they are
        sent, for `Message` to decode.
        """
        queue = arguments.get("queue")
        if queue is not None:
            check_name("queue", queue)
        if (subscription := arguments.get("subscription")) is not None:
            check_name("subscription", subscription)
        # A plain queue's own publish_many knows no priorities: the one that looks the queue up refuses them.
        is_of_a_queue = function in VERBS and queue is not None and "priorities" not in arguments
        names, values, has_arrays = [], [], False
        for name, value in arguments.items():
            if value is None or (is_of_a_queue and name == "queue"):
                continue
            names.append(name.rstrip("_"))
            values.append(plain(name, value))
            if type(value) is not str and isinstance(value, Array):
                has_arrays = True
        self.has_arrays = has_arrays
        """Whether a parameter is an array in binary form."""
        self.function = function
        self.arguments = tuple(names)
        """The names of the parameters, in the order of `values`."""
        self.values = values
        self.columns = columns
        self.is_raw = raw
        # Of text that is an Enum as well, the text.
        own = str.__str__(queue) if is_of_a_queue else None
        self.name, self.statement, self.prepare = _statement(function, own, self.arguments, columns)


@lru_cache(maxsize=4096)
def _statement(
    function: str, queue: str | None, arguments: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[str, bytes, bool | None]:
    """The function's name in SQL, the statement, and whether it is prepared at once.

    Columns are named: a newer function may have more.
    """
    # The name of a queue was checked: it needs no quotes.
    name = f"trunq.{function}" if queue is None else f"trunq_queue.{queue}_{function}"
    given = ", ".join(f"p_{argument} => %s" for argument in arguments)
    wanted = f"{', '.join(columns)} from " if columns else ""
    at_once = function in VERBS and next(_hot) < AT_ONCE
    return name, f"select {wanted}{name}({given})".encode(), at_once or None


_hot: Final = count()


class Explained(Translated):
    """Around a call: `translated`, and arguments that the database cannot read as what they should be.

    Around other statements those are somebody else's.
    """

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            super().__exit__(kind, error, trace)
            if isinstance(error, psycopg.DataError):
                raise unreadable(Diagnosis.of(error.diag), str(error)) from error


explained: Final = Explained()


def unreadable(told: Diagnosis, otherwise: str = "") -> InvalidArgument:
    """What the database cannot read as the type it wants: RawJson that is not JSON, a number too large."""
    parts = [told.message or otherwise, told.detail, told.context]
    return InvalidArgument(". ".join(part.rstrip(".").partition("\n")[0] for part in parts if part))
