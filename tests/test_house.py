"""The house rules: what every part has promised the others."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from trunq import AsyncClient, Client, errors, install, record, word
from trunq.cli.work.message import COLOURS, FATES
from trunq.client._sync.passing import Passing
from trunq.client.reply import _SAID
from trunq.spark.statistic import FAILURES
from trunq.wire.scalar import YES_OR_NO

ROOT = Path(__file__).parent.parent
SQL = sorted(path for name in ("trunq", "trunq_pgq") for path in (ROOT / "src" / name / "sql").rglob("*.sql"))
PYTHON = sorted(
    path for name in ("src", "tests", "tools", "benchmarks") for path in (ROOT / name).rglob("*.py")
)
TESTS = [path for path in PYTHON if path.is_relative_to(ROOT / "tests")]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()

LONGEST_FILE = 500

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError|unittest\.mock|\bMagicMock\b")

EMPTY_NAMES = {"core", "common", "utils", "util", "base", "manager", "service", "helpers", "misc"}
"""Names of modules that say nothing."""

SYNONYMS = {"task", "tasks", "event", "events", "topic", "topics", "claim", "nack", "dlq"}
"""What others call our things: one word a concept."""

HELPERS = {
    "connect",
    "close",
    "copy",
    "fill_schedules",
    "finish",
    "for_tenant",
    "listen",
    "read",
    "result",
    "stream",
    "transaction",
}
"""Methods of the client that are no function of the database."""

OVERLOADED = {"_check_lease", "_find_queue", "_refuse_row"}
"""Names of trunq that two functions have."""

STATES_TOLD = (
    "src/trunq/sql/functions/keep/messages.sql",
    "src/trunq/record/__init__.py",
    "docs/operate/watching.md",
)
"""Where all states of a message are listed for people."""

SHORT = {
    "ack": {"result"},
    "time_out": ("error",),
    "retry": {"after", "error"},
    "release": {"after", "error"},
    "publish": {"awaited", "columns"},
    "publish_unique": {"awaited"},
    "publish_many": {"kind", "key", "awaited"},
    "publish_many_unique": {"kind", "key", "awaited"},
}
"""Parameters that are one for all messages, where the function has them as lists, by other names; and
`awaited` and `columns`, of the options.
"""

PUBLIC = """
select p.proname, coalesce(obj_description(p.oid), ''), p.proargnames::text[], p.proargmodes::text[]
from pg_proc p where p.pronamespace = 'trunq'::regnamespace and p.prokind = 'f' and p.proname !~ '^_'
order by 1
"""

Function = tuple[str, str, list[str] | None, list[str] | None]


@pytest.fixture
def functions(sql: psycopg.Connection[Any]) -> list[Function]:
    """The public functions of the database."""
    return sql.execute(PUBLIC).fetchall()


def names(function: Function, wanted: str) -> list[str]:
    """Names of a function's parameters ("i"), or of the columns it returns ("t")."""
    all_names = function[2] or []
    modes = function[3] or ["i"] * len(all_names)
    return [name for name, mode in zip(all_names, modes, strict=True) if mode == wanted]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_public_function_is_commented_in_sentences(functions: list[Function]) -> None:
    assert functions
    assert [name for name, comment, *_ in functions if not comment.endswith(".")] == []


def test_no_name_has_two_functions(sql: psycopg.Connection[Any]) -> None:
    """Comments, grants, doors and the client name a function without its arguments."""
    rows = sql.execute(
        "select proname::text from pg_proc where pronamespace = 'trunq'::regnamespace"
        " group by 1 having count(*) > 1"
    ).fetchall()
    assert {name for (name,) in rows} == OVERLOADED


def test_functions_are_named_without_their_arguments_where_one_has_the_name() -> None:
    pattern = r"^(?:comment|\w+ execute) on (?:function|procedure) (trunq\.(\w+))\("
    found = [match for path in SQL for match in re.findall(pattern, path.read_text(), re.MULTILINE)]
    assert {full for full, name in found if name not in OVERLOADED} == set()


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_every_function_is_a_method_with_its_parameters_and_the_reverse(
    functions: list[Function], client: type
) -> None:
    methods = {name: m for name, m in inspect.getmembers(client, inspect.isfunction) if name[0] != "_"}
    assert set(methods) - HELPERS == {function[0] for function in functions}
    for function in functions:
        method = methods[function[0]]
        parameters = inspect.signature(method).parameters
        of_python = {"self", "connection", "habits", *SHORT.get(function[0], ())}
        taken = [f"p_{name.rstrip('_')}" for name in parameters if name not in of_python]
        assert taken == names(function, "i"), function[0]
        assert parameters["connection"].kind is inspect.Parameter.KEYWORD_ONLY, function[0]
        assert method.__doc__, function[0]


def test_arguments_that_are_true_or_false_are_known(sql: psycopg.Connection[Any]) -> None:
    found = sql.execute(
        "select distinct substr(a.name, 3) from pg_proc p,"
        " unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) a(name, type)"
        " where p.pronamespace = 'trunq'::regnamespace and p.proname !~ '^_' and a.type = 'boolean'::regtype"
    ).fetchall()
    assert {name for (name,) in found} == YES_OR_NO


def test_rows_have_the_columns_of_their_functions(functions: list[Function]) -> None:
    """Where a method is written by hand: tools/client.py finds the row of the others by its columns."""
    returned = {
        function[0]: names(function, "t") for function in functions if function[0] not in vars(Passing)
    }
    for name, row in {
        "extend": record.Extension,
        "get_memo": record.Memo,
        "cancel": record.Cancelled,
        "next_batch": record.Batch,
        "publish_many_unique": record.Published,
        "read_batch": record.BatchMessage,
        "sync_schedules": record.ScheduleChange,
    }.items():
        of_ours = ("queue", "subscription") if row is record.Batch else ()
        assert [*row._fields] == [*returned.pop(name), *of_ours], name
    assert [name for name, columns in returned.items() if columns] == ["lease", "lease_ids"]


def test_docstrings_that_are_comments_have_the_words_of_python() -> None:
    of_sql = re.compile(r"\bp_[a-z]\w*|TQ\d{3}|\b[nN]ull\b(?![\]}])|\b(?:true|false|infinity)\b|functions/")
    said = {
        name: of_sql.findall(method.__doc__ or "") for name, method in vars(Passing).items() if name[0] != "_"
    }
    assert len(said) > 100
    assert {name: words for name, words in said.items() if words} == {}


def test_errors_and_sqlstates_are_the_same_ones() -> None:
    text = "".join(path.read_text() for path in SQL)
    caught = set(re.findall(r"when sqlstate '(TQ\d{3})'", text))
    assert set(re.findall(r"TQ\d{3}", text)) - caught == set(errors.BY_SQLSTATE)
    drawn = dict(re.findall(r"── (\w+)\s+(TQ\d{3})", errors.__doc__ or ""))
    assert drawn == {error.__name__: state for state, error in errors.BY_SQLSTATE.items()}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_outcomes_states_and_reasons_are_the_same_everywhere(sql: psycopg.Connection[Any]) -> None:
    """One table in SQL has them (functions/ground/outcome.sql)."""
    rows = sql.execute("select receipt, outcome, state, reason, meaning from trunq._outcomes()").fetchall()
    outcomes = {row[1] for row in rows}
    reasons = {row[3] for row in rows if row[3]}
    states = {state for (state,) in sql.execute("select state from trunq._states()")}
    is_open = {state for (state,) in sql.execute("select state from trunq._states() where is_open")}
    assert {row[2] for row in rows} < states
    assert set(get_args(word.Outcome)) == outcomes
    assert set(get_args(word.State)) == set(COLOURS) == set(FATES) == states
    assert set(get_args(word.Open)) == is_open
    assert set(get_args(word.Reason)) == reasons
    assert set(FAILURES) < outcomes
    assert {"success", *_SAID} == outcomes - {"released", "parked"}
    allowed = dict(
        sql.execute(
            "select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint"
            " where conname in ('outcome_is_known', 'reason_is_known')"
        ).fetchall()
    )
    known = {table: set(re.findall(r"'(\w+)'", text)) for table, text in allowed.items()}
    assert known["trunq.dead"] == reasons
    assert known["trunq.reply"] == outcomes - {"released", "parked"}
    told = "select obj_description(oid) from pg_proc where proname = any (%s)"
    for name, expected in (
        ("show_message", states | outcomes),
        ("list_messages", states),
        ("cancel", {"outdated", "replaced", "purged"}),
    ):
        assert expected <= words(str(sql.execute(told, ([name],)).fetchone()))
    column = "select col_description('trunq_data._specimen_archive'::regclass, attnum) from pg_attribute"
    column += " where attrelid = 'trunq_data._specimen_archive'::regclass and attname = 'outcome'"
    assert outcomes <= words(str(sql.execute(column.encode()).fetchone()))
    page = (ROOT / "docs" / "message.md").read_text()
    assert [
        (*re.findall(r"^`(\w+)`$", cells[0]), cells[2], cells[3].strip("`") or None, cells[1])
        for line in re.findall(
            r"^\| (`\w+` \|.*) \|$", page.partition("## How an attempt ends")[2], re.MULTILINE
        )
        if len(cells := [cell.strip().replace("(`expires_at`)", "(expires_at)") for cell in line.split("|")])
        == 4
    ] == [row[1:] for row in rows]
    drawn = re.findall(
        r"^    (\S+) --> (\w+|\[\*\])", page.partition("```mermaid")[2].partition("```")[0], re.MULTILINE
    )
    assert {end for arrow in drawn for end in arrow} == {*states, "[*]"}
    for name, expected in (
        ("keep/archive", outcomes),
        ("operate/watching", states),
        ("work/cancel", states - {"leased"}),
    ):
        assert expected <= words((ROOT / "docs" / f"{name}.md").read_text())
    pages = (ROOT / "src" / "trunq" / "django" / "admin.py").read_text()
    assert "STATES: Final = get_args(State)" in pages
    for path in STATES_TOLD:
        assert "dead, replaced or purged" in (ROOT / path).read_text(), path


def test_snapshots_are_taken_in_one_place() -> None:
    """Anywhere else the caller's own transaction would be missing among those in progress."""
    counts = {path.name: path.read_text().count("pg_current_snapshot(") for path in SQL}
    assert {name: count for name, count in counts.items() if count} == {"clock.sql": 1}


def test_a_row_of_a_log_is_looked_up_by_its_place_and_for_whom_it_is() -> None:
    """Two subscriptions' retries of a message may have one transaction and id: trunq._is_row says whose."""
    place = re.compile(
        r"\bg\.txid = \S+ and g\.id = |\bg\.id = \S+ and g\.txid = |\(g\.txid, g\.id\) (?:=|in) "
    )
    lines = [(path, line.strip()) for path in SQL for line in path.read_text().splitlines()]
    found = [(shown(path), line) for path, line in lines if place.search(line)]
    assert [each for each in found if "subscription_id" not in each[1]] == []
    assert sum("trunq._is_row(g.txid, g.id, g.subscription_id, " in line for _, line in lines) > 10
    # The pattern knows rows of a log by this name.
    named = re.compile(r"trunq_log\.(?:_specimen|%\d?\$?I)(?: as)? (?!where\b|order\b)(\w+)(?=[ )]|$)")
    called = {name for _, line in lines if "from trunq_log." in line for name in named.findall(line)}
    assert called == {"g"}


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in install.migrations()] == list(range(1, install.newest() + 1))
    assert install.newest() > 0


def test_security_definers_pin_their_search_path(sql: psycopg.Connection[Any]) -> None:
    loose = sql.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.prosecdef"
        " and p.pronamespace::regnamespace::text like 'trunq%'"
        " and coalesce(p.proconfig::text, '') not like '%search_path%'"
    ).fetchall()
    assert loose == []


def test_sql_keywords_are_lower_case() -> None:
    keywords = re.compile(
        r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|BEGIN|END|IF|RETURN)\b", re.MULTILINE
    )
    assert [shown(path) for path in SQL if keywords.search(path.read_text())] == []


def test_one_word_a_concept(functions: list[Function]) -> None:
    spoken = [name for function in functions for name in (function[0], *(function[2] or []))]
    spoken += [part.removesuffix(".py") for path in PYTHON for part in path.relative_to(ROOT).parts]
    assert {word for name in spoken for word in name.split("_")} & SYNONYMS == set()


@pytest.mark.parametrize("tool", ["column", "client", "unasync", "reference", "signature"])
def test_generated_files_are_fresh(tool: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_is_too_long() -> None:
    """One that a tool writes is as long as what it is written from."""
    written = [path for path in [*PYTHON, *SQL] if path.name != "passing.py"]
    lengths = {shown(path): len(path.read_text().splitlines()) for path in written}
    assert {name: length for name, length in lengths.items() if length >= LONGEST_FILE} == {}


def test_modules_have_names_that_say_something() -> None:
    parts = {part.removesuffix(".py") for path in PYTHON for part in path.relative_to(ROOT).parts}
    assert parts & EMPTY_NAMES == set()


def test_nothing_is_left_unfinished() -> None:
    texts = {shown(path): path.read_text() for path in [*PYTHON, *SQL] if path != Path(__file__)}
    assert {name: found.group() for name, text in texts.items() if (found := UNFINISHED.search(text))} == {}


def test_tests_do_not_sleep() -> None:
    """They wait for facts, with waiting.py; a program that a test starts may do as it likes."""
    assert [
        f"{shown(path)}:{node.lineno}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep" and path.name != "waiting.py"
    ] == []


ASSERTION = re.compile(r"\bassert\b|raises\(|wait_until")


def test_every_test_asserts_something() -> None:
    """By itself, or through a helper of the tests that does."""
    defined = [
        (shown(path), node.name, ast.unparse(node))
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    helpers = {name for _, name, body in defined if ASSERTION.search(body) and name[:5] != "test_"}
    asserting = re.compile(rf"{ASSERTION.pattern}|\b({'|'.join(sorted(helpers))})\(")
    silent = [
        (path, name) for path, name, body in defined if name[:5] == "test_" and not asserting.search(body)
    ]
    assert silent == []


def undocumented(path: Path) -> list[str]:
    """What is public in a file and says nothing about itself."""
    tree = ast.parse(path.read_text())
    public: list[ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = [tree]
    public += [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_"
    ]
    return [f"{shown(path)}:{getattr(node, 'name', '')}" for node in public if not ast.get_docstring(node)]


def test_what_is_public_has_a_docstring() -> None:
    sources = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]
    assert [name for path in sources for name in undocumented(path)] == []


def fenced(language: str) -> list[list[str]]:
    """The lines of each of ARCHITECTURE's blocks in a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    assert blocks
    return [[line for line in block.splitlines() if line] for block in blocks]


def drawn_paths() -> Iterator[Path]:
    """The paths of ARCHITECTURE's tree: four characters a level, the name, two spaces or more, what it is."""
    folders: list[str] = []
    (tree,) = fenced("tree")
    for line in tree:
        indent, name = re.fullmatch(r"([│├└─ ]*)(\S+)(?:  .*)?", line).groups()  # type: ignore[union-attr]
        folders[len(indent) // 4 :] = [name]
        yield ROOT.joinpath(*folders)


def is_module(path: Path) -> bool:
    return path.suffix == ".py" or any(path.rglob("*.py")) or any(path.rglob("*.sql"))


def test_every_path_of_the_tree_exists() -> None:
    drawn = list(drawn_paths())
    assert len(drawn) > 20
    assert [shown(path) for path in drawn if not path.exists()] == []
    assert [shown(path) for path in drawn if path.is_dir() == (path.suffix == ".py")] == []


def test_every_package_and_the_library_s_modules_stand_in_the_tree() -> None:
    packages = [path for path in (ROOT / "src").iterdir() if (path / "__init__.py").exists()]
    assert ROOT / "src" / "trunq" in packages
    members = [path for path in (ROOT / "src" / "trunq").iterdir() if path.name[:2] != "__"]
    standing = {*packages, *(path for path in members if is_module(path))}
    assert sorted(map(shown, standing - set(drawn_paths()))) == []


def test_the_layers_of_the_page_are_those_of_import_linter() -> None:
    """One block for each contract about layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    checked = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    assert [re.split(r"\s*>\s*", " ".join(block)) for block in fenced("layers")] == checked


def test_every_concept_has_its_file_of_functions() -> None:
    page = ARCHITECTURE.partition("## The concepts")[2].partition("\n\nFurther")[0]
    concepts = set(re.findall(r"^\| (\w+) \|", page, re.MULTILINE)) - {"concept"}
    assert len(concepts) >= 19
    assert concepts - {path.stem for path in SQL if "functions" in path.parts} == set()


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_and_paths_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = [page.parent / target for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text)]
    named = re.findall(r"`((?:src|tests|tools|benchmarks|docs|examples)/[\w/.-]*)`", text)
    assert [str(path) for path in [*links, *(ROOT / path for path in named)] if not path.exists()] == []


def test_the_list_of_decisions_is_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert [name for _, name in listed] == sorted(path.name for path in folder.glob("0*.md"))
    assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
    for number, name in listed:
        assert name.startswith(number)
        assert (folder / name).read_text().startswith(f"# {number}: ")


def test_every_folder_of_tests_has_its_question() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {f"tests/{path.relative_to(ROOT).parts[1]}" for path in TESTS if path.name[:5] == "test_"}
    assert "tests/sql" in folders
    asked = set(re.findall(r"^\| `(tests/\S+)` \|", page, re.MULTILINE))
    assert {folder for folder in folders if not folder.endswith(".py")} == asked - {"tests/test_house.py"}


def test_each_promise_names_tests_that_exist() -> None:
    page = ARCHITECTURE.partition("## Promises")[2]
    named = set(re.findall(r"`(test_\w+)`", page))
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) >= 20
    assert named <= written, sorted(named - written)
