"""What benchmarks share: how many rounds count, and whether other work took part of the machine."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from scope import ALL

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

sys.path.insert(0, str(BENCHMARKS))
import _bench  # noqa: E402
from _load import Watch  # noqa: E402

# A folder of tests and a benchmark have one name: later imports find the folder.
sys.path.remove(str(BENCHMARKS))

BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_figures_come_of_nine_rounds_at_least() -> None:
    assert _bench.Options().rounds() == 9
    assert _bench.Options().rounds(25) == 25
    assert _bench.Options(quick=True).rounds() < 9
    with pytest.raises(ValueError, match="too few"):
        _bench.Options().rounds(5)


def test_no_benchmark_counts_its_rounds_by_itself() -> None:
    """Whatever is called `rounds` comes of the options."""
    found = {
        f"{path.name}: {ast.unparse(value)}"
        for path in BENCHMARKS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name, value in named(node)
        # A name passes on what was asked for before.
        if name == "rounds"
        and not isinstance(value, ast.Name)
        and not ast.unparse(value).startswith("options.rounds(")
    }
    assert found == set()


def named(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Names that get a value here, by assignment or as an argument."""
    if isinstance(node, ast.keyword):
        yield node.arg, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(map(ast.unparse, target.elts), node.value.elts, strict=True)
            else:
                yield ast.unparse(target), node.value


def test_work_of_the_program_and_of_its_children_is_not_that_of_others() -> None:
    """Also of a child that has ended."""
    watch = Watch()
    own = watch._before[2]
    subprocess.run([sys.executable, "-c", BURN], check=True)
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    share = watch.share()
    assert watch._before[2] - own > 0.9
    assert 0 <= share <= 1


def test_a_table_says_that_the_machine_was_under_load() -> None:
    quiet, loaded = (_bench.Table("t", "Nine rounds.", ["", "figure"], others=each) for each in (0.05, 0.4))
    assert "Under load: other work took 40% of the machine." in loaded.markdown()
    assert "Under load" not in quiet.markdown()


@pytest.mark.parametrize("name", ["merge", "cluster"])
def test_a_benchmark_runs_in_its_quick_form(name: str, tmp_path: Path) -> None:
    if name == "merge" and find_spec("dlt") is None:
        pytest.skip("dlt is in the dependency group bench")
    if name == "cluster" and not ALL:
        pytest.skip("TRUNQ_TEST_ALL starts a cluster")
    tables = tmp_path / "tables.md"
    program = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--markdown", str(tables)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| target |" in tables.read_text()
