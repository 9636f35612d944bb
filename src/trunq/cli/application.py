"""The user's own module, and why it does not import."""

from __future__ import annotations

import importlib
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from trunq.cli.ground.failure import Mistake, explain
from trunq.leader.rank import Ranks
from trunq.schedule import Schedule
from trunq.worker import Worker

T = TypeVar("T")

_US: Final = str(Path(__file__).parent)


def load(app: str) -> Worker:
    """Import the Worker that MODULE:APP names, from the current directory first."""
    return _load(app, Worker, "a worker", "shop:worker for the worker", "worker = Worker('queue')")


def load_ranks(name: str) -> Ranks:
    """Import the Ranks that MODULE:NAME names, from the current directory first."""
    return _load(name, Ranks, "a Ranks", "shop:ranks for the Ranks", "ranks = Ranks()")


def load_schedules(app: str) -> list[Schedule]:
    """Import the list of schedules, or those of the Worker, that MODULE:NAME names."""
    _, found = _find(
        app, Worker, "a list of schedules", "shop:schedules for the list", "worker = Worker('queue')"
    )
    wanted = found.schedules if isinstance(found, Worker) else found
    if not isinstance(wanted, list | tuple) or not all(isinstance(each, Schedule) for each in wanted):
        raise Mistake(f"{app} is neither a list of trunq.Schedule(...) nor a Worker.")
    return list(wanted)


def _load(app: str, wanted: type[T], what: str, example: str, made: str) -> T:
    module, found = _find(app, wanted, what, example, made)
    if not isinstance(found, wanted):
        there = _those_there(module, wanted, made)
        raise Mistake(f"{app} is a {type(found).__name__}, not a trunq {wanted.__name__}.{there}")
    return found


def _find(app: str, wanted: type[object], what: str, example: str, made: str) -> tuple[ModuleType, Any]:
    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise Mistake(f"{app!r} does not name {what}. Write module:name, as in {example} of shop.py.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            there = _those_there(module, wanted, made)
            raise Mistake(f"The module {module_name} has no {attribute}.{there}") from None
    return module, found


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


def _those_there(module: object, wanted: type[object], made: str) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, wanted)]
    several = f"{wanted.__name__.removesuffix('s')}s"
    return (
        f" {several} in it: {', '.join(names)}."
        if names
        else f" It has no {wanted.__name__}: {made} makes one."
    )
