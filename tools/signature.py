"""Writes trunq/connection/bridge/signature.json: what every function that the client calls takes and returns.

`python tools/signature.py` writes the file, `--check` fails when it is stale. It says what stands in
`src/trunq/sql/functions`: edit that.
"""

from __future__ import annotations

import json
import sys

from function import FUNCTIONS, PUBLIC, ROOT, Function, functions

TARGET = ROOT / "src" / "trunq" / "connection" / "bridge" / "signature.json"


PRIVATE = "_list_fillable|_fill_schedule"
"""Functions that are not public, and that the client calls."""


def typed(text: str) -> tuple[str, str]:
    """Name and type of a parameter or a column."""
    name, kind = text.split(maxsplit=1)
    return name, kind.partition(" default ")[0].strip()


def taken(function: Function) -> dict[str, str]:
    """The types of a function's parameters, by their names."""
    return {name.removeprefix("p_"): kind for name, kind in map(typed, function.parameters)}


def returned(function: Function) -> dict[str, str]:
    """The types of the columns that a function returns, by their names; "" is that of a single value."""
    if not function.returns.startswith("table ("):
        return {"": function.returns.removeprefix("setof ")}
    columns = function.returns.removeprefix("table (").removesuffix(")")
    return dict(map(typed, columns.split(", ")))


def signatures() -> str:
    """The whole file, a line for each function."""
    paths = sorted(FUNCTIONS.rglob("*.sql"))
    found = [each for path in paths for each in functions(path, f"{PUBLIC}|{PRIVATE}") if each.returns]
    lines = [
        f'"{function.name}": {json.dumps({"takes": taken(function), "returns": returned(function)})}'
        for function in sorted(found, key=lambda function: function.name)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write the file, or check it."""
    text = signatures()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        sys.exit(f"{TARGET.relative_to(ROOT)} is stale: run python tools/signature.py")


if __name__ == "__main__":
    main()
