"""How much of a pipeline, or of each of its instances, may run, as data."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from trunq.pipeline.definition.part import Part


class Limits(Part):
    """`running`: runs and backfills at once; `rate`: runs that begin, as "10/minute"; `rows_a_day` and
    `bytes_a_day`: what the sink takes on a day of UTC before no further run begins.

    With `per`, each is of one value of it.
    """

    running: int | None = Field(None, gt=0, lt=10_000)
    rate: str | None = None
    rows_a_day: int | None = Field(None, gt=0, lt=10**15)
    bytes_a_day: int | None = Field(None, gt=0, lt=10**15)

    @field_validator("rate")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        found = re.fullmatch(r"([1-9][0-9]{0,3})/(second|minute|hour|day)", value or "1/day")
        if found is None or int(found[1]) > 1000:
            raise ValueError(
                f'rate is {value!r:.40}: as "10/minute", 1000 at most a second, minute, hour or day'
            )
        return value

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("limits are empty: running, rate, rows_a_day or bytes_a_day")
        return self
