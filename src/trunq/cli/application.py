"""The user's own module, and why it does not import."""

from __future__ import annotations

import importlib
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from trunq.cli.failure import Mistake, explain
from trunq.worker import Worker

_US: Final = str(Path(__file__).parent)


def load(app: str) -> Worker:
    """Import the Worker that MODULE:APP names, from the current directory first."""
    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise Mistake(
            f"{app!r} does not name a worker. Write module:name, as in shop:worker for the worker of shop.py."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _import(module_name)
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Mistake(f"The module {module_name} has no {attribute}.{_those_there(module)}") from None
    if not isinstance(found, Worker):
        raise Mistake(f"{app} is a {type(found).__name__}, not a trunq Worker.{_those_there(module)}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise Mistake(
                f"There is no module {error.name} here or installed. Is this the right directory?"
            ) from None
        raise Mistake(_why_not(name, error)) from None
    except Exception as error:
        if explain(error) is not None:
            raise
        raise Mistake(_why_not(name, error)) from None


def _why_not(name: str, error: Exception) -> str:
    """Why a module does not import: the user's own line first, then the way there, without ours."""
    why = traceback.format_exception_only(error)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, "<module>", line=error.text))
    if not frames:
        return f"The module {name} does not import: {why}"
    own = next((frame for frame in reversed(frames) if _is_users(frame.filename)), frames[0])
    told = [f"{_short(own.filename)}, line {own.lineno}: {own.line}", f"    {why}"]
    if len(frames) > 1:
        told += [f"The module {name} does not import. The way there:", *traceback.format_list(frames)]
    return "\n".join(line.rstrip() for line in told)


def _is_ours(file: str) -> bool:
    return file.startswith(("<frozen", _US)) or file == importlib.__file__


def _is_users(file: str) -> bool:
    """Whether it is the user's own code, not of an installed library."""
    return not file.startswith((sysconfig.get_path("stdlib"), *site.getsitepackages()))


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _those_there(module: object) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    return (
        f" Workers in it: {', '.join(names)}."
        if names
        else " It has no Worker: worker = Worker('queue') makes one."
    )
