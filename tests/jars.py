"""Drivers of JDBC as Debian installs them; Spark of the tests has those that are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

MARIADB: Final = Path("/usr/share/java/mariadb-java-client.jar")
POSTGRES: Final = Path("/usr/share/java/postgresql.jar")

JARS: Final = [str(jar) for jar in (MARIADB, POSTGRES) if jar.is_file()]

SPARK: Final = {"spark.jars": ",".join(JARS)} if JARS else {}
"""For a session."""

ENVIRONMENT: Final = {"TRUNQ_SPARK_JARS": json.dumps(JARS)}
"""For a process that starts one."""
