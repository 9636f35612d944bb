"""What a client does to a message before it is sent: headers are injected, payloads checked by their kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any

from trunq.client.payload import PayloadType, Unfit, require_plain
from trunq.errors import InvalidArgument
from trunq.wire.json import RawJson, headers_text, json_bytes
from trunq.wire.scalar import Interval, Label, interval, label, seconds

Injector = Callable[[str, dict[str, Any]], Mapping[str, Any]]
"""Called with the queue and the headers so far, it returns headers."""


class Outgoing:
    """Injectors of headers, in their order, and the types of payloads by kind."""

    def __init__(self, injectors: Iterable[Injector], payload_types: Mapping[Label, Any] | None) -> None:
        """Raises TypeError for what can be neither."""
        self._injectors = tuple(injectors)
        for each in self._injectors:
            require_plain(each, "an injector is a plain function (queue, headers) -> headers")
        self._types = {
            label("kind", kind): PayloadType(wanted) for kind, wanted in (payload_types or {}).items()
        }

    def stamped(self, name: str, value: str) -> Outgoing:
        """The same with a header that each message gets."""

        def stamp(_queue: str, headers: dict[str, Any]) -> Mapping[str, Any]:
            return {**headers, name: value}

        made = Outgoing((*self._injectors, stamp), None)
        made._types = self._types
        return made

    def type_of(self, kind: str | None) -> PayloadType | None:
        """The type that payloads of a kind have; None: any."""
        return self._types.get(kind)

    def __bool__(self) -> bool:
        return bool(self._injectors or self._types)

    def one(
        self, queue: str, kind: Label | None, payload: Any, headers: Any, body: bytes | None
    ) -> tuple[Any, Any]:
        """Payload and headers of a message as they are sent; of a body alone nothing is checked."""
        if payload is not None or body is None:
            payload = self.payload(kind, payload)
        return payload, self._headers(queue, headers)

    def many(
        self,
        queue: str,
        payloads: Sequence[Any],
        kinds: Iterable[Label | None] | None,
        kind: Label | None,
        headers: Any,
        *,
        has_bodies: bool,
    ) -> tuple[Sequence[Any], Iterable[Label | None] | None, Any]:
        """Payloads, kinds and headers of many; what stands for all of them is injected into once."""
        if isinstance(headers, list | tuple):
            headers = [self._headers(queue, each) for each in headers]
        else:
            headers = self._headers(queue, headers)
        if not self._types or not payloads:
            return payloads, kinds, headers
        if isinstance(kinds, Iterator):
            kinds = list(kinds)
        own = [kind if each is None else each for each in kinds or [None]]
        each_kind = repeat(own[0]) if len(own) == 1 else own
        checked = [
            payload if payload is None and has_bodies else self.payload(each, payload, position)
            for position, (each, payload) in enumerate(zip(each_kind, payloads, strict=False))
        ]
        # Lengths that differ are for the database to refuse.
        return [*checked, *payloads[len(checked) :]], kinds, headers

    def payload(self, kind: Label | None, payload: Any, position: int | None = None) -> Any:
        """A payload as it is sent. Raises InvalidArgument when it does not fit its kind."""
        if (wanted := self._types.get(label("kind", kind))) is None:
            return payload
        raw = json_bytes("payload" if position is None else "payloads", payload, position)
        what = "the payload" if position is None else f"payloads[{position}]"
        try:
            wanted.read(b"null" if raw is None else raw, f"{what} of kind {label('kind', kind)}")
        except Unfit as error:
            raise InvalidArgument(str(error)) from error
        return None if raw is None else RawJson(raw)

    def _headers(self, queue: str, given: Any) -> Any:
        if not self._injectors:
            return given
        if isinstance(given, dict) or given is None:
            own = given or {}
        else:
            own = json.loads(headers_text(given) or "{}")
        headers = dict(own)
        for each in self._injectors:
            injected = each(queue, dict(headers))
            if not isinstance(injected, Mapping):
                raise InvalidArgument(
                    f"the injector {getattr(each, '__qualname__', each)} returned"
                    f" {type(injected).__name__}, not headers",
                    "an injector returns a dict: the headers it was given, and more",
                )
            # What whoever publishes says himself stands.
            headers = {**injected, **own}
        return headers or given


def with_awaited(options: Mapping[str, Any] | None, awaited: bool | Interval) -> Mapping[str, Any] | None:
    """The options of a message whose result somebody awaits, or not; times in seconds."""
    if isinstance(options, Mapping):
        times = {name: options.get(name) for name in ("time_out", "backoff_base", "backoff_cap")}
        said = {
            name: seconds(name, time) for name, time in times.items() if isinstance(time, str | timedelta)
        }
        options = {**options, **said} if said else options
    if awaited is False or awaited is None:
        return options
    kept = True if awaited is True else interval("awaited", awaited)
    return {**(options or {}), "awaited": kept.total_seconds() if isinstance(kept, timedelta) else kept}


def with_columns(
    options: Mapping[str, Any] | None, columns: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The options of a message that has columns of the user's: the database takes them from there."""
    return options if columns is None else {**(options or {}), "columns": columns}
