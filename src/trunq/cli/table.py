"""Tables that fit the terminal: names are never broken, columns on the right go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_GAP: Final = 2
_LEAST: Final = 16
"""Narrower than that, an error says nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with its cells. One that is flexible becomes narrower before others go."""

    name: str
    cells: Sequence[Text]
    is_number: bool = False
    is_flexible: bool = False

    @property
    def width(self) -> int:
        """How wide it is at least."""
        widest = max(map(len, (self.name, *(cell.cell_len * "x" for cell in self.cells))))
        return min(widest, _LEAST) if self.is_flexible else widest


def fits(columns: Sequence[Column], room: int) -> bool:
    """Whether these columns stand side by side."""
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1) <= room


def draw(columns: Sequence[Column], room: int, keep: int = 1) -> RenderableType:
    """A table of as many columns as there is room for, the first `keep` in any case."""
    shown = list(columns)
    while len(shown) > keep and not fits(shown, room):
        stiff = [place for place, column in enumerate(shown) if place >= keep and not column.is_flexible]
        del shown[stiff[-1] if stiff else -1]
    drawn = _table(shown)
    if left_out := [column.name for column in columns if column not in shown]:
        return Group(drawn, Text(f"No room for: {', '.join(left_out)}.", style="dim"))
    return drawn


def _table(columns: Sequence[Column]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        drawn.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            min_width=column.width,
            no_wrap=not column.is_flexible,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*row)
    return drawn
