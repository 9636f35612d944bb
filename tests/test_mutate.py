"""Mutants still fit the code; that tests kill them, `make mutate` shows."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load() -> ModuleType:
    """tools/mutate.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


mutate = load()
MUTANTS = mutate.mutants()


def defined(path: Path, names: list[str]) -> bool:
    """Whether a file has this test, or this class with this test."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for name in names:
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.name for each in MUTANTS])
def test_a_mutant_fits_its_file_and_names_tests_that_there_are(mutant: mutate.Mutant) -> None:
    assert mutant.fault(ROOT) is None
    assert mutant.after != mutant.before
    assert mutant.why.endswith(".")
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.split("::")
        assert (ROOT / file).is_file(), test
        assert names, f"{test}: a file of tests is too much, name one"
        assert defined(ROOT / file, names), test


def test_there_are_forty_and_each_has_a_name_of_its_own() -> None:
    names = [each.name for each in MUTANTS]
    assert len(set(names)) == len(names) >= 40


def test_one_that_fits_no_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "lease.sql").write_text("if a then\nif a then\n")
    twice = mutate.Mutant("m", "engine", "lease.sql", "if a then", "", "It breaks.", ("t",))
    assert twice.fault(tmp_path) == "mutant m: its 'before' is 2 times in lease.sql, not once"
    gone = mutate.Mutant("m", "engine", "lease.sql", "if b then", "", "It breaks.", ("t",))
    assert gone.fault(tmp_path) == "mutant m: its 'before' is 0 times in lease.sql, not once"
    moved = mutate.Mutant("m", "engine", "answer.sql", "if a then", "", "It breaks.", ("t",))
    assert moved.fault(tmp_path) == "mutant m: there is no file answer.sql"


def test_a_file_is_mended_whatever_happens(tmp_path: Path) -> None:
    path = tmp_path / "lease.sql"
    path.write_text("if a then\n")
    mutant = mutate.Mutant("m", "engine", path.name, "a", "b", "It breaks.", ("t",))
    with pytest.raises(KeyboardInterrupt), mutant.applied(tmp_path):
        assert path.read_text() == "if b then\n"
        raise KeyboardInterrupt
    assert path.read_text() == "if a then\n"


@pytest.mark.parametrize(
    ("code", "cases", "verdict"),
    [
        (0, "<testcase name='t'/>", "survived"),
        (1, "<testcase name='t'><failure message='assert 1 == 2'/></testcase>", "killed"),
        (1, "<testcase name='t'><failure message='Failed: Timeout (>180.0s)'/></testcase>", "hung"),
        (1, "<testcase name='t'><error message='syntax error'/></testcase>", "broken"),
        (0, "<testcase name='t'><skipped/></testcase>", "broken"),
        (4, "", "broken"),
    ],
)
def test_only_a_test_that_failed_has_killed(tmp_path: Path, code: int, cases: str, verdict: str) -> None:
    """Neither one that hangs, nor a database that could not be made, shows that somebody looks."""
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert mutate._judge(code, report, "said")[0] == verdict
