"""A standalone Spark cluster on this machine: a master, two workers of one core, a bare environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

import trunq
from trunq.spark.launch.java import find_java
from waiting import wait_until

SOURCE = str(Path(trunq.__file__).parents[1])
"""The trunq under test: what is installed may be another."""

EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass
class Cluster:
    """A running one, and what its drivers are started with."""

    folder: Path
    master: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str, host: str = "127.0.0.1") -> None:
        """Start a daemon: Master or Worker."""
        spark = Path(pyspark.__file__).parent
        command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.partition('-')[0]}"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "SPARK_HOME": str(spark),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.folder / name),
            **find_java().environment(),
        }
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0", *arguments],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def start_worker(self, name: str, host: str = "127.0.0.1") -> None:
        """Start a worker of one core and wait until the master has it."""
        self.start(f"worker.Worker-{name}", "--cores", "1", "--memory", "768m", self.master, host=host)
        self.find(f"worker.Worker-{name}", r"Successfully registered with (master)")

    def find(self, name: str, pattern: str) -> str:
        """Wait until a daemon has logged something; its first group."""
        found = wait_until(lambda: re.search(pattern, self.log(name).read_text()), 120, f"{name}: {pattern}")
        return str(found[1])

    def log(self, name: str) -> Path:
        """What a daemon says."""
        return self.folder / f"{name}.log"

    def executors(self) -> list[psutil.Process]:
        """The executors that run, of all applications."""
        found = []
        for process in self.processes.values():
            if psutil.pid_exists(process.pid) and process.poll() is None:
                children = psutil.Process(process.pid).children()
                found += [child for child in children if EXECUTOR in " ".join(_command(child))]
        return found

    def kill(self, name: str) -> None:
        """Kill a daemon with all its executors' parent: they find out by themselves."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all daemons."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(120)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def master_in(folder: Path) -> Iterator[Cluster]:
    """A cluster with a master, and no worker yet."""
    cluster = Cluster(folder)
    try:
        cluster.start("master.Master", "--port", "0")
        cluster.master = cluster.find("master.Master", r"Starting Spark master at (spark://\S+)")
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """A cluster with a master and two workers."""
    with master_in(folder) as cluster:
        for name in ("1", "2"):
            cluster.start(f"worker.Worker-{name}", "--cores", "1", "--memory", "768m", cluster.master)
        for name in ("1", "2"):
            cluster.find(f"worker.Worker-{name}", r"Successfully registered with (master)")
        yield cluster


CONF = {"spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": SOURCE}


def program(cluster: Cluster, dsn: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a driver of ours: Python with these arguments, in the folder of the cluster."""
    conf = json.dumps(CONF)
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TRUNQ_", "PG", "SPARK_"))
        },
        "PYTHONPATH": SOURCE,
        "TRUNQ_DSN": dsn,
        "TRUNQ_SPARK_MASTER": cluster.master,
        "TRUNQ_SPARK_MEMORY": "512m",
        "TRUNQ_SPARK_CONF": conf,
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cluster.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
