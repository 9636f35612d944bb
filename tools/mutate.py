"""Shows that the tests would notice: breaks the code in ways that a queue dies of, one at a time.

`python tools/mutate.py` first runs the tests that the mutants name on a copy of the tree as it is: all must
pass. Then each mutant of `tools/mutant/*.toml` is applied to the copy by itself, and one of its tests must
fail; otherwise it survived, and a test is missing. `--only NAME` runs some, `--list` runs none. The working
tree is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Final
from xml.etree import ElementTree

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

ROOT: Final = Path(__file__).resolve().parent.parent
MUTANTS: Final = ROOT / "tools" / "mutant"

_TEST_SECONDS: Final = 180
"""Of one test. One that takes longer hangs, which proves nothing: perhaps the machine is slow."""

_PATIENCE: Final = "20"
"""Seconds for which a test waits for a fact: of many mutants it never comes."""

_STYLES: Final = {"killed": "green", "survived": "bold red"}

_console = Console(highlight=False)


@dataclass(frozen=True)
class Mutant:
    """A way to break one file, and the tests that must notice."""

    name: str
    room: str
    """The part of the system, which is the name of the file that lists the mutant."""
    file: str
    before: str
    after: str
    why: str
    tests: tuple[str, ...]

    def fault(self, root: Path) -> str | None:
        """Why it cannot be applied below `root`; None: it can."""
        path = root / self.file
        if not path.is_file():
            return f"mutant {self.name}: there is no file {self.file}"
        if (count := path.read_text().count(self.before)) != 1:
            return f"mutant {self.name}: its 'before' is {count} times in {self.file}, not once"
        return None

    @contextmanager
    def applied(self, root: Path) -> Iterator[None]:
        """Break the file below `root`, and mend it in the end."""
        path = root / self.file
        text = path.read_text()
        path.write_text(text.replace(self.before, self.after))
        try:
            yield
        finally:
            path.write_text(text)


@dataclass(frozen=True)
class Outcome:
    """What a run of tests came to."""

    verdict: str
    """killed: a test failed; survived: all passed; hung: a test took too long; broken: no test could run."""
    detail: str
    """The tests that failed, or what pytest said instead."""
    seconds: float


def mutants() -> list[Mutant]:
    """All of them, room by room."""
    return [
        Mutant(
            name,
            path.stem,
            given["file"],
            given["before"],
            given["after"],
            given["why"],
            tuple(given["tests"]),
        )
        for path in sorted(MUTANTS.glob("*.toml"))
        for name, given in tomllib.loads(path.read_text()).items()
    ]


def copy_tree(target: Path) -> None:
    """Copy what git knows or would know, as it is in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(root: Path, tests: Iterable[str], *options: str) -> Outcome:
    """Run these tests in a copy, as a push runs them."""
    report = root / "mutate.xml"
    report.unlink(missing_ok=True)
    begun = monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}",
         f"--junitxml={report}", *options, *tests],
        cwd=root, env=_environment(root), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
    verdict, detail = _judge(process.returncode, report, printed)
    return Outcome(verdict, detail, monotonic() - begun)


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRUNQ_TEST_")}
    # Two states of a file may have one size and one time: compiled ones are never kept.
    own = {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1", "TRUNQ_TEST_PATIENCE": _PATIENCE}
    return {**kept, **own}


def _judge(code: int, report: Path, printed: str) -> tuple[str, str]:
    said = "\n".join(printed.splitlines()[-15:])
    if code not in (0, 1) or not report.exists():
        return "broken", said
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314  # pytest wrote it
    failed = {
        case.get("name", ""): each.get("message", "") for case in cases for each in case.iter("failure")
    }
    if any(re.search(r"\bTimeout \(?>", message) for message in failed.values()):
        return "hung", ", ".join(failed)
    if failed:
        return "killed", ", ".join(failed)
    if code == 1:
        return "broken", said
    if len(cases) == len(list(ElementTree.parse(report).iter("skipped"))):  # noqa: S314
        return "broken", "each of its tests was skipped"
    return "survived", ""


def _require_copy(root: Path) -> None:
    """Raise where the tests would import the working tree."""
    code = "import trunq; print(trunq.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=root, env=_environment(root), capture_output=True, text=True, check=True
    )
    if not Path(done.stdout.strip()).resolve().is_relative_to(root):
        sys.exit(f"tests in the copy would import {done.stdout.strip()}")


def _chosen(only: list[str]) -> list[Mutant]:
    every = mutants()
    known = {each.name for each in every} | {each.room for each in every}
    if unknown := [name for name in only if name not in known]:
        sys.exit(f"there is no mutant, and no room, {unknown[0]}: tools/mutate.py --list shows them")
    return [each for each in every if not only or each.name in only or each.room in only]


def _show(chosen: list[Mutant]) -> None:
    for each in chosen:
        lines = [f"[bold]{each.name}[/] ({each.room}, {each.file})", each.why, *map(escape, each.tests)]
        _console.print("\n  ".join(lines), soft_wrap=True)


def _report(results: list[tuple[Mutant, Outcome]]) -> None:
    table = Table("Outcome", "Room", Column("Mutant, and what killed it", overflow="fold"), "Seconds")
    for mutant, outcome in results:
        style = _STYLES.get(outcome.verdict, "yellow")
        told = outcome.detail if outcome.verdict == "killed" else f"{mutant.why}\n{outcome.detail}".strip()
        what = f"[bold]{mutant.name}[/]\n{escape(told)}"
        table.add_row(f"[{style}]{outcome.verdict}", mutant.room, what, f"{outcome.seconds:.0f}")
    _console.print(table)


def main(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="a mutant, or a room of them; may be repeated")
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="show the mutants, and run nothing")] = False,
) -> None:
    """Break a copy of the code in ways that a queue dies of, and see that tests notice."""
    chosen = _chosen(only or [])
    if listed:
        _show(chosen)
        return
    if faults := [fault for each in chosen if (fault := each.fault(ROOT))]:
        sys.exit("\n".join(faults))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="trunq-mutate-") as place,
        Progress(*columns, console=_console) as bar,
    ):
        root = Path(place).resolve()
        # Postgres, which does not run as root, reads files of tests.
        root.chmod(0o755)
        copy_tree(root)
        _require_copy(root)
        task = bar.add_task("the tests, with nothing broken", total=len(chosen))
        tests = dict.fromkeys(test for each in chosen for test in each.tests)
        if (before := run_tests(root, tests)).verdict != "survived":
            sys.exit(f"with nothing broken, not all tests pass:\n{before.detail}")
        results = []
        for each in chosen:
            bar.update(task, description=each.name)
            with each.applied(root):
                results.append((each, run_tests(root, each.tests, "-x")))
            bar.console.print(f"{results[-1][1].verdict:8}  {each.name}")
            bar.advance(task)
    _report(results)
    if left := [each.name for each, outcome in results if outcome.verdict != "killed"]:
        sys.exit(f"{len(left)} of {len(results)} mutants are not killed: {', '.join(left)}")
    _console.print(f"all {len(results)} mutants are killed")


if __name__ == "__main__":
    typer.run(main)
