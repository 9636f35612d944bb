"""trunq doctor: what is wrong, since when, and the command that helps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Final, get_args

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import address
from trunq.cli.ground.failure import in_shell
from trunq.cli.ground.output import out, write, write_json
from trunq.diagnosis import diagnose, disk_size, together
from trunq.errors import InvalidArgument
from trunq.record import Finding
from trunq.word import Severity

_LOOK: Final = dict(zip(get_args(Severity), (("✗", "bold red"), ("!", "yellow"), ("?", "cyan")), strict=True))
"""The worst first."""

EXAMPLES = (
    "trunq doctor",
    "# In a script: 0 all is well, 1 warnings, 2 errors",
    "trunq doctor > /tmp/trunq || mail -s trunq ops@example.com < /tmp/trunq",
    "trunq doctor --json | jq '.[] | select(.severity == \"error\")'",
    "# Until when the disk lasts, where the server is on another machine",
    "trunq doctor --disk 200GB",
    "trunq doctor --watch",
)
_ROUND: Final = 20
"""Queues that are looked at one by one each time with --watch: of more, the worst, and others each minute."""


def _size(value: str) -> str:
    try:
        return disk_size(value)
    except InvalidArgument as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}.") from None


def doctor(
    watch: Annotated[
        bool, typer.Option("--watch", metavar=option.FLAG, help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=1, metavar="SECONDS", help="With --watch: how often.")
    ] = 5.0,
    disk: Annotated[
        str | None,
        typer.Option(
            "--disk",
            metavar="SIZE",
            parser=_size,
            help="How large the server's disk is, such as 200GB; of one on this machine that is looked up.",
            show_default=False,
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Say what is wrong with this database, since when, and what helps.

    It looks at versions, the leader and its duties, functions that somebody changed, what each queue lacks,
    all that waits and is not read, sessions and replication slots that hold something back, vacuum, the
    disk, locks, settings, rights, the wake-up through this address and clocks. It changes nothing. `error`:
    messages are late, lost or at risk until somebody acts. `unseen`: this role may not look; the line names
    the grant.

    Exit code: 0 when all is well or the rest was unseen, 1 with warnings, 2 with errors.
    """
    with address(database) as dsn:
        if watch:
            # Into a file or a pipe, Live writes nothing before its end.
            with Live(console=out, auto_refresh=False) if out.is_terminal else nullcontext() as live:
                while True:
                    foot = Text(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends this", style="dim")
                    shown = Group(_shown(diagnose(dsn, queues=_ROUND, disk=disk)), foot)
                    if live is None:
                        write(shown)
                    else:
                        live.update(shown, refresh=True)
                    time.sleep(every)
        found = diagnose(dsn, disk=disk)
    if json:
        write_json([row._asdict() for row in found])
    else:
        write(_shown(found))
    raise typer.Exit(code(found))


def code(found: Sequence[Finding]) -> int:
    """0 all is well, 1 warnings, 2 errors; what was not seen counts for nothing."""
    return {"error": 2, "warning": 1}.get(min((row.severity for row in found), default=""), 0)


def _shown(found: Sequence[Finding]) -> RenderableType:
    order = sorted(together(found), key=lambda row: list(_LOOK).index(row.severity))
    lines = [line for row in order for line in _lines(row)]
    counts = Counter(row.severity for row in found)
    if any((row.area, row.severity) == ("database", "unseen") for row in found):
        lines.append(Text("This role sees nothing of trunq.", style="bold"))
    elif not counts["error"] and not counts["warning"]:
        lines.append(Text("All is well." if not found else "All that this role may see is well."))
    else:
        lines.append(Text(display.troubles(row.severity for row in found), style="bold"))
    return Group(*lines)


def _lines(row: Finding) -> tuple[Text, Text]:
    symbol, style = _LOOK[row.severity]
    head = Text(f"{symbol} {row.severity:<7} ", style=style)
    hint = Text("    ") + _under(Text(in_shell(row.hint), style="dim"), 4)
    return head + _under(Text(in_shell(row.finding)), len(head)), hint


def _under(text: Text, column: int) -> Text:
    """A text that begins in a column, and whose other lines do."""
    lines = text.wrap(out, max(20, out.width - column))
    return Text("\n" + " " * column).join(lines)
