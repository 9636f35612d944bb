"""Settings: flags before environment before file before defaults, and clear words when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunq import Client, InvalidArgument, settings


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and environment."""
    monkeypatch.chdir(tmp_path)
    for name in [*settings.Settings.model_fields, *(f"spark_{each}" for each in settings.Spark.model_fields)]:
        monkeypatch.delenv(f"TRUNQ_{name.upper()}", raising=False)
    return tmp_path


def test_a_flag_comes_before_the_environment_before_the_file_before_the_default(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.load().dsn is None
    (nowhere / "trunq.toml").write_text('dsn = "file"\nembedded = "here"\n')
    assert settings.load().dsn == "file"
    assert settings.load().embedded == Path("here")
    monkeypatch.setenv("TRUNQ_DSN", "environment")
    assert settings.load().dsn == "environment"
    assert settings.load(dsn=None).dsn == "environment"
    assert settings.load(dsn="flag").dsn == "flag"


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ('dsm = "x"', r"unknown setting, dsm[\s\S]*known: dsn"),
        ("dsn = 3", r"the setting dsn \(TRUNQ_DSN, or trunq.toml\) is wrong"),
        ("dsn = ", "trunq.toml cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(nowhere: Path, text: str, trouble: str) -> None:
    (nowhere / "trunq.toml").write_text(text)
    with pytest.raises(InvalidArgument, match=trouble):
        settings.load()


def test_a_client_without_an_address_takes_the_one_that_is_set(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNQ_DSN", database)
    with Client() as client:
        assert client.list_queues() == []


def test_spark_has_a_table_of_its_own(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.load().spark == settings.Spark(master="local[*,4]", memory="1g")
    (nowhere / "trunq.toml").write_text(
        '[spark]\nmaster = "spark://a:7077"\n'
        '[spark.conf]\n"spark.executor.cores" = 2\n"spark.ui.enabled" = true\n'
    )
    assert settings.load().spark.conf == {"spark.executor.cores": "2", "spark.ui.enabled": "true"}
    monkeypatch.setenv("TRUNQ_SPARK_MASTER", "spark://b:7077")
    monkeypatch.setenv("TRUNQ_SPARK_MEMORY", "2g")
    assert settings.load().spark.master == "spark://b:7077"
    assert settings.load().spark.memory == "2g"
    assert settings.load().spark.conf["spark.executor.cores"] == "2"
    (nowhere / "trunq.toml").write_text("[spark]\nmastr = 1\n")
    with pytest.raises(InvalidArgument, match=r"unknown setting, spark\.mastr[\s\S]*known: master, memory"):
        settings.load()
