"""The user's module, taken to executors."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

_NEVER: Final = (1980, 1, 1, 0, 0, 0)
"""The time of all files in an archive: the same files make the same archive."""


def ship(context: SparkContext, app: str) -> str | None:
    """Take the module of MODULE:NAME to executors, with the package that it is in.

    Returns the name of the archive; None for a module that is installed, which executors have by their
    environment.
    """
    top = app.partition(":")[0].partition(".")[0]
    if top in {"trunq", *sys.stdlib_module_names} or (files := dict(_files(top))) == {}:
        return None
    content = _pack(files)
    name = f"{top}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    if name not in (context._python_includes or ()):
        # Spark serves it from here to executors that come later, and removes the directory in the end.
        archive = Path(context._temp_dir) / name
        archive.write_bytes(content)
        context.addPyFile(str(archive))
    return name


def forget_other(top: str, archive: str) -> None:
    """Forget the module as a process that Spark uses again knows it, if it came out of another archive."""
    known = sys.modules.get(top)
    if known is not None and archive not in (getattr(known, "__file__", None) or ""):
        for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
            del sys.modules[name]


def _files(top: str) -> Iterator[tuple[str, Path]]:
    """The files of a module or package that is not installed, by their names in the archive."""
    spec = importlib.util.find_spec(top)
    if spec is None:
        return
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        if not _is_installed(folder):
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield f"{top}/{path.relative_to(folder).as_posix()}", path
    elif spec.origin is not None and (path := Path(spec.origin)).suffix == ".py" and not _is_installed(path):
        yield path.name, path


def _is_installed(path: Path) -> bool:
    resolved = path.resolve()
    return any(
        resolved.is_relative_to(Path(sysconfig.get_path(kind)).resolve())
        for kind in ("purelib", "platlib", "stdlib")
    )


def _pack(files: dict[str, Path]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files.items():
            archive.writestr(zipfile.ZipInfo(name, _NEVER), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()
