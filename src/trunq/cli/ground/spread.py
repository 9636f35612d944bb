"""Options that go together are one dataclass in the code, and options of the command for its user."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Function = TypeVar("Function", bound=Callable[..., Any])


def spread(function: Function) -> Function:
    """Give a function, in the place of each parameter that is a dataclass, the fields of that dataclass."""
    plain: list[inspect.Parameter] = []
    bundles: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(bundle := parameter.annotation):
            bundles[parameter.name] = bundle
            plain += _parameters(bundle)
        else:
            plain.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def gathered(**given: Any) -> Any:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        return function(**given)

    gathered.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}
    return gathered  # type: ignore[return-value]


def _parameters(bundle: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(bundle)
    ]
