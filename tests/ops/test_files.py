"""Every file of ops/: its commands are commands of trunq, and its variables are settings of trunq."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from deploying import COMMAND, FILES, METRICS, ROOT, WRITTEN, commands, implied, parse
from trunq.settings import Settings

PAGE = ROOT / "docs" / "operate" / "deploy.md"


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def settings(model: type[BaseModel] = Settings, prefix: str = "TRUNQ") -> Iterator[str]:
    """The variables by which settings are given."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}_{name.upper()}"
        yield variable
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings(field.annotation, variable)


def options(command: Any = COMMAND) -> Iterator[str]:
    """The variables by which options of commands are given."""
    for parameter in command.params:
        given = parameter.envvar or ()
        yield from [given] if isinstance(given, str) else given
    for each in getattr(command, "commands", {}).values():
        yield from options(each)


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_the_command_line_understands_each_command_of_a_file(path: Path) -> None:
    found = list(commands(path))
    assert len(found) == len(WRITTEN.findall(path.read_text())), found
    for each in [*found, *implied(path)]:
        parse(each)


def test_a_command_that_is_none_is_noticed(tmp_path: Path) -> None:
    for line in ("trunq worker shop:worker --gracious 1s", "trunq leader --metrics", "trunq db instal"):
        with pytest.raises(Exception, match=r"(?i)no such option|requires an argument|no such command"):
            parse(line.split()[1:])
    hidden = tmp_path / "hidden.yaml"
    hidden.write_text("command: [sh, -c, 'exec trunq worker shop:worker']\n")
    assert len(list(commands(hidden))) < len(WRITTEN.findall(hidden.read_text()))


def test_variables_are_settings_of_trunq() -> None:
    known = {*settings(), *options()}
    assert {"TRUNQ_DSN", "TRUNQ_LEADER_DSNS", "TRUNQ_WEB_TOKEN"} <= known
    named = {name for path in FILES for name in re.findall(r"\bTRUNQ_[A-Z_]+\b", path.read_text())}
    assert "TRUNQ_DSN" in named
    assert named - known == set()


def test_metrics_are_those_of_the_catalogue_and_of_its_page() -> None:
    named = {name for path in FILES for name in re.findall(r"\btrunq_[a-z_]+\b", path.read_text())}
    assert named - METRICS == set()
    page = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    assert set(re.findall(r"`(trunq_\w+)`", page)) == {name.removesuffix("_bucket") for name in METRICS}


def test_the_page_names_every_folder_and_no_file_that_is_not_there() -> None:
    text = PAGE.read_text()
    named = {ROOT / each for each in re.findall(r"`(ops/[\w./@-]+)`", text)}
    assert [shown(path) for path in named if not path.exists()] == []
    folders = {path.parent for path in FILES}
    assert [shown(each) for each in folders if shown(each).split("/")[1] not in text] == []
