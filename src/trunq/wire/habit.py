"""Words of other libraries for what has another name here: each error names the right one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

_PUBLISH: Final = "client.publish('orders', {'order': 1}, kind='placed')"
_HANDLER: Final = "@worker.handler('placed')"

_OF_A_CLIENT: Final = {
    **dict.fromkeys(
        ("add_job", "apply_async", "defer", "delay", "enqueue", "push", "put", "send", "send_task"), _PUBLISH
    ),
    **dict.fromkeys(("enqueue_many", "send_many"), "client.publish_many('orders', payloads, kind='placed')"),
    **dict.fromkeys(("consume", "dequeue", "pop", "receive"), "client.lease('orders', 'default', 'my-name')"),
    "task": f"trunq.Worker('orders'), and {_HANDLER}",
}
_OF_A_WORKER: Final = {
    **dict.fromkeys(("actor", "consumer", "job", "on", "register", "subscriber", "task"), _HANDLER),
    **dict.fromkeys(("start", "worker_main", "serve"), "worker.run()"),
}
_OF_A_HANDLER: Final = ("apply_async", "delay", "enqueue", "send")
_ARGUMENTS: Final = {
    **dict.fromkeys(("countdown", "defer", "delay_seconds", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "run_at", "schedule_at", "scheduled_at"), "due_at"),
    **dict.fromkeys(("expires", "expires_in", "ttl"), "max_age"),
    **dict.fromkeys(("args", "data", "json", "kwargs", "message"), "payload"),
    **dict.fromkeys(("task", "task_name", "name", "topic", "type", "event"), "kind"),
    **dict.fromkeys(("routing_key", "group", "partition_key"), "key"),
    **dict.fromkeys(("retries", "max_retries"), "options, as in options={'max_attempts': 3}"),
    "time_limit": "options, as in options={'time_out': 60}",
}


def refuse_arguments(function: str, given: Mapping[str, Any]) -> NoReturn:
    """Refuse arguments that a function does not have. Raises TypeError, as Python does."""
    name = next(iter(given))
    here = _ARGUMENTS.get(name)
    said = f"; what you mean is {here}" if here else ""
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{said}")


def mark(function: Callable[..., Any], kind: str) -> None:
    """Have a handler say how its message is published, where it is called as other libraries call theirs."""
    way = (
        f"a handler is not called, its message is published: client.publish('queue', payload, kind={kind!r})"
    )

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AttributeError(way)

    for name in _OF_A_HANDLER:
        if not hasattr(function, name):
            # Some take no attributes: methods, functions in C.
            with suppress(AttributeError, TypeError):
                setattr(function, name, refuse)


class ClientHabits:
    """A client, asked for an attribute that it does not have."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            _refuse(self, name, _OF_A_CLIENT)


class WorkerHabits:
    """A worker, asked for one."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            _refuse(self, name, _OF_A_WORKER)


def _refuse(given: object, name: str, words: Mapping[str, str]) -> NoReturn:
    kind = type(given).__name__
    said = f": write {words[name]}" if name in words else ""
    raise AttributeError(f"{kind!r} object has no attribute {name!r}{said}", name=name, obj=given)
