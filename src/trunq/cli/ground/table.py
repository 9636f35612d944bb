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


def fit(columns: Sequence[Column], room: int, keep: int = 1) -> tuple[list[Column], Text]:
    """As many columns as there is room for, the first `keep` in any case; a line that names the others."""
    shown = list(columns)
    while len(shown) > keep and not fits(shown, room):
        stiff = [place for place, column in enumerate(shown) if place >= keep and not column.is_flexible]
        del shown[stiff[-1] if stiff else -1]
    names = [column.name for column in shown]
    gone = ", ".join(column.name for column in columns if column.name not in names)
    return shown, Text(f"No room for: {gone}." if gone else "", style="dim", end="\n" if gone else "")


def draw(columns: Sequence[Column], room: int, keep: int = 1) -> RenderableType:
    """A table of as many columns as there is room for."""
    shown, gone = fit(columns, room, keep)
    drawn = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold"
    )
    for column in shown:
        drawn.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            min_width=column.width,
            no_wrap=not column.is_flexible,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in shown), strict=True):
        drawn.add_row(*row)
    return Group(drawn, gone) if gone else drawn


def draw_under(headings: Sequence[str], columns: Sequence[Column], room: int) -> RenderableType:
    """The same with a heading for each row, in a line of its own where it is another than before."""
    shown, gone = fit(columns, room)
    lines = [_line([Text(column.name, style="bold") for column in shown], shown)]
    for place, heading in enumerate(headings):
        if place == 0 or headings[place - 1] != heading:
            lines.append(Text(heading, style="bold", no_wrap=True, overflow="ignore"))
        lines.append(_line([column.cells[place] for column in shown], shown))
    return Group(*lines, *([gone] if gone else []))


def _line(cells: Sequence[Text], columns: Sequence[Column]) -> Text:
    padded = []
    for cell, column in zip(cells, columns, strict=True):
        own = cell.copy()
        own.align("right" if column.is_number else "left", column.width)
        padded.append(own)
    line = Text(" " * _GAP).join(padded)
    line.no_wrap, line.overflow = True, "ignore"
    return line
