"""Where the credentials of each value of `per` come from, as data: no secret lies here."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from trunq.pipeline.definition.part import Part


class Credentials(Part):
    """One of: `env`, variables of the runner's environment, `PREFIX_VALUE__NAME`; `file`, a TOML or JSON file
    at `path` with a table for each value, read at each run; `function`, a Python function `module:name` that
    is given the value and returns a dict.

    `${credentials.NAME}` is one of them.
    """

    from_: Literal["env", "file", "function"] = Field(alias="from")
    prefix: str | None = None
    path: str | None = None
    function: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = {"env": self.prefix, "file": self.path, "function": self.function}
        names = {"env": "prefix", "file": "path", "function": "function"}
        if given[self.from_] is None:
            raise ValueError(f"from = '{self.from_}' needs {names[self.from_]}")
        if others := [
            name for source, name in names.items() if source != self.from_ and given[source] is not None
        ]:
            raise ValueError(f"{others[0]} does not go with from = '{self.from_}'")
        if self.prefix is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]*", self.prefix):
            raise ValueError(
                f"prefix is {self.prefix!r:.40}: capital letters, digits and underscores, as 'CRM_'"
            )
        if self.path is not None and not self.path.endswith((".toml", ".json")):
            raise ValueError(f"path is {self.path!r:.60}: a file that ends in .toml or .json")
        if self.function is not None and ":" not in self.function:
            raise ValueError(f"function is {self.function!r:.60}: 'module:name'")
        return self
