"""What a session on a cluster needs besides: the Python of its executors, and a driver that they reach."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Final

from trunq.spark.errors import SparkError

PYTHON: Final = "trunq-python"
"""The shim. Where trunq has another path on executors than here, this name is looked up on the PATH."""

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_MASTER: Final = re.compile(r"(?:spark|k8s)://(?:https?://)?(?P<host>\[[^\]]+\]|[^:/,]+)(?::(?P<port>\d+))?")


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own Java process. (`local-cluster` starts executors.)"""
    return re.match(r"local(\[|$)", master) is not None


def cluster_settings(master: str, workers: Mapping[str, str], archives: str | None) -> dict[str, str]:
    """Settings for executors, which have the environment of their machine, not that of the driver.

    `workers` are the variables that the shim needs.
    """
    settings = {f"spark.executorEnv.{name}": value for name, value in workers.items()}
    settings["spark.executorEnv.TRUNQ_PYTHON_VERSION"] = "{}.{}".format(*sys.version_info)
    if archives is not None:
        settings |= {"spark.archives": archives}
        settings["spark.executorEnv.PATH"] = f"{_packed_shim(archives)}:{_PATH}"
    if (host := driver_host(master)) is not None:
        settings["spark.driver.host"] = host
    return settings


def packed_python(archives: str) -> str:
    """The interpreter of the packed environment, as executors see it from where they run."""
    return f"./{_name(archives)}/bin/python"


def driver_host(master: str) -> str | None:
    """The address of this machine on the way to the master, by which executors too will find the driver.

    Spark would take that of the host's name, which on many machines is no address that others reach. None
    where somebody has said what to take, or where the master's address does not tell.
    """
    if os.environ.get("SPARK_LOCAL_IP") or os.environ.get("SPARK_LOCAL_HOSTNAME"):
        return None
    if (found := _MASTER.match(master)) is None:
        return None
    host, port = found["host"].strip("[]"), int(found["port"] or 443)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Of a datagram socket this sends nothing; it only chooses the way.
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        # Spark will say so itself.
        return None


def _name(archives: str) -> str:
    """The directory into which the packed environment is unpacked: the first archive's name after the #."""
    first, _, name = archives.partition(",")[0].partition("#")
    if not name or "/" in name:
        raise SparkError(
            f"the archive {first} needs a name, under which executors unpack it",
            f"write archives='{first}#environment'",
        )
    return name


def _packed_shim(archives: str) -> str:
    # Driver and executors must have the same minor version of Python anyway.
    library = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"./{_name(archives)}/lib/{library}/site-packages/trunq/spark/launch/shim"
