"""What trunq is told from outside: flags, the environment (TRUNQ_*), trunq.toml, defaults, in this order."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from trunq.errors import InvalidArgument

FILE = Path("trunq.toml")
"""Read from the directory a command is started in."""


def _text(value: Any) -> Any:
    """A value as Spark writes it: TOML has numbers and true where Spark has texts."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class Spark(BaseModel):
    """How to start Spark: the table `spark` of trunq.toml, or TRUNQ_SPARK_MASTER and so on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = "local[*,4]"
    """Where tasks run: all cores of this machine, four tries each; or spark://host:7077, k8s://..."""

    memory: str = "1g"
    """Heap of the driver."""

    archives: str | None = None
    """The environment for executors, packed by venv-pack: venv.tar.gz#environment."""

    jars: list[str] = []
    """Files of jars, as drivers of JDBC are. As a variable, TRUNQ_SPARK_JARS, it is JSON."""

    conf: dict[str, Annotated[str, BeforeValidator(_text)]] = {}
    """Any of Spark's own settings. As a variable it is JSON."""


class Pipelines(BaseModel):
    """How runs of pipelines are done: the table `pipeline` of trunq.toml, or TRUNQ_PIPELINE_SPARK_FROM_ROWS
    and so on. From either size on, a slice that more than one task can read passes in Spark.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    spark_from_rows: Annotated[int, Field(ge=0)] = 1_000_000
    """Rows of a slice, by benchmarks/engine.py. 0: not by rows."""

    spark_from_bytes: Annotated[int, Field(ge=0)] = 200_000_000
    """Bytes of a slice, as they lie in its source. 0: not by bytes."""


class Lineage(BaseModel):
    """Where runs of pipelines tell of themselves: the table `lineage` of trunq.toml, or TRUNQ_LINEAGE_URL and
    so on. Without `url` and `file`, nowhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None
    """A server that takes events of OpenLineage at /api/v1/lineage."""

    file: Path | None = None
    """A file that gets a line of JSON for each, where there is no `url`."""

    namespace: str = "trunq"
    """Of the jobs, which are called as their pipelines."""

    api_key: str | None = None
    """Sent as a bearer token."""

    timeout: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Seconds for each event. Runs do not wait for it."""


class Leader(BaseModel):
    """What `trunq leader` leads: the table `leader` of trunq.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dsns: list[str] = []
    """Addresses of databases, in place of `dsn`. As a variable, TRUNQ_LEADER_DSNS, it is JSON."""

    statistics: Annotated[float, Field(gt=0)] | None = None
    """Seconds between two lines of statistics in the log. None: there are none."""


class Settings(BaseSettings):
    """The settings, each a flag of the commands, a variable TRUNQ_<NAME> and a line of trunq.toml."""

    model_config = SettingsConfigDict(
        env_prefix="TRUNQ_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        toml_file=FILE,
        extra="forbid",
        frozen=True,
    )

    dsn: str | None = None
    """Address of the database, as libpq takes it. None: libpq's own defaults (PGHOST, PGDATABASE, ...)."""

    embedded: Path | None = None
    """Directory of an embedded server to use instead."""

    silence: Annotated[float, Field(gt=0)] | None = None
    """Seconds of silence after which the server is asked what became of a connection. Where it does not work
    for it, or cannot be reached, the connection is closed, and opened again. None: 30."""

    spark: Spark = Spark()

    pipeline: Pipelines = Pipelines()

    lineage: Lineage = Lineage()

    leader: Leader = Leader()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, nearest first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(**flags: Any) -> Settings:
    """Read the settings; a flag that is None was not given. Raises InvalidArgument for what is wrong."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{FILE} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            nested: dict[str, type[BaseModel]] = {
                "spark": Spark,
                "pipeline": Pipelines,
                "lineage": Lineage,
                "leader": Leader,
            }
            of = nested.get(str(first["loc"][0]), Settings) if len(first["loc"]) > 1 else Settings
            known = ", ".join(of.model_fields)
            raise InvalidArgument(f"{FILE} has an unknown setting, {name}", f"known: {known}") from error
        where = f"the setting {name} (TRUNQ_{name.upper().replace('.', '_')}, or {FILE})"
        raise InvalidArgument(f"{where} is wrong: {first['msg']}") from error
