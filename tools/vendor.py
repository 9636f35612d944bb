"""Fetch the scripts of the dashboard that others wrote: by npm pack, as static/vendor/vendor.toml says.

python tools/vendor.py            fetch all, and compare their checksums
python tools/vendor.py --check    compare those that are here
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent / "src" / "trunq" / "web" / "static" / "vendor"
LISTED = HERE / "vendor.toml"


def listed() -> dict[str, dict[str, Any]]:
    """The files, each with where it comes from."""
    return tomllib.loads(LISTED.read_text())


def wrong() -> list[str]:
    """What is here otherwise than it is listed."""
    known = listed()
    found = {path.name for path in HERE.iterdir()} - {LISTED.name}
    said = [f"{name} is not in {LISTED.name}" for name in sorted(found - known.keys())]
    for name, told in known.items():
        path = HERE / name
        if not path.exists():
            said.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
            said.append(f"{name} is not the one of {told['package']} {told['version']}")
    return said


def fetch(name: str, told: dict[str, Any]) -> None:
    """Put a file here, as its package has it."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{told['package']}@{told['version']}"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(Path(folder) / packed.stdout.strip().splitlines()[-1]) as package:
            member = package.extractfile(f"package/{told['path']}")
            assert member is not None
            (HERE / name).write_bytes(member.read())


def main() -> int:
    """Fetch, unless --check; then compare."""
    if "--check" not in sys.argv[1:]:
        for name, told in listed().items():
            fetch(name, told)
    said = wrong()
    for each in said:
        print(each)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
