"""Find and import a pipeline: from `-f shop.py:shop`, or from a `tidemill.toml` or `pyproject.toml`.

The search for a configuration file starts in the current folder and continues in its parents. The pipeline's
file is imported under a private module name. Its folder is put on `sys.path`, as `python shop.py` does, so
that the file can import modules next to it. An error that the user's file raises is reported with its line.
"""

import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineNotFound, TidemillError
from tidemill.pipeline.settings import check_profile

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

CONFIG = "tidemill.toml"
_PYPROJECT = "pyproject.toml"
_SETTINGS = frozenset({"pipeline", "profiles"})
PROFILE = "TIDEMILL_PROFILE"
"""The environment variable that chooses a profile. Child processes inherit it."""


def find(target: str | None = None, start: Path | None = None) -> "Pipeline":
    """Import and return a pipeline.

    Args:
        target: `file.py:name`, `package.module:name`, or a file that has one pipeline; None to search for a
            configuration file.
        start: the folder in which that search starts; it continues in the parents.
    """
    return load(*locate(target, start))


def locate(target: str | None = None, start: Path | None = None) -> tuple[str, Path]:
    """Return the target of a pipeline, and the folder that it is relative to, without importing anything."""
    if target is not None:
        return target, Path.cwd()
    located = configured(start)
    if located is None:
        raise PipelineNotFound(
            f"found no {CONFIG} in {(start or Path.cwd()).resolve()} or in a parent folder"
        )
    return located


def configured(start: Path | None = None) -> tuple[str, Path] | None:
    """Return the target in the nearest configuration file, and its folder; None if there is no such file."""
    folder = (start or Path.cwd()).resolve()
    for parent in (folder, *folder.parents):
        target = _configured(parent)
        if target is not None:
            return target, parent
    return None


def load(target: str, folder: Path, *, fresh: bool = False) -> "Pipeline":
    """Import a pipeline.

    Args:
        target: the file or module, and the variable; see `find`.
        folder: the folder that a relative file is relative to.
        fresh: import the file again if this process has already imported it. This returns a new pipeline.
    """
    where, _, name = target.partition(":")
    if fresh:
        sys.modules.pop(_module_name(folder / where) if where.endswith(".py") else where, None)
    try:
        module = _import_file(folder / where) if where.endswith(".py") else _import_module(where, folder)
    except TidemillError:
        raise
    except (Exception, SystemExit) as error:  # the file may call sys.exit()
        command = f"python {folder / where}" if where.endswith(".py") else f"python -c 'import {where}'"
        raise PipelineNotFound(
            f"{target} cannot be imported: {_place(error)}",
            hint=f"fix this error; to see the traceback, run: {command}",
        ) from error
    pipeline = _in_module(module, name, target)
    profile = os.environ.get(PROFILE)
    if profile:
        values, file = profile_settings(profile, folder)
        pipeline.use_settings(values, f"profile {profile} ({file.name})", file.parent)
    return pipeline


def profile_settings(profile: str, folder: Path) -> tuple[dict[str, str], Path]:
    """Return the settings of a profile, and the configuration file that has it, in a folder or above."""
    folder = folder.resolve()
    for parent in (folder, *folder.parents):
        for file, table in _tables(parent):
            profiles = table.get("profiles", {})
            if not isinstance(profiles, dict) or not isinstance(profiles.get(profile, {}), dict):
                raise PipelineNotFound(
                    f"{file}: `profiles` is not a table", hint=f"write [profiles.{profile}]"
                )
            if profile not in profiles:
                known = ", ".join(sorted(profiles)) or "none"
                raise PipelineNotFound(
                    f"{file} has no profile {profile!r}", hint=f"its profiles are: {known}"
                )
            return check_profile(profile, profiles[profile], str(file)), file
    raise PipelineNotFound(
        f"the profile {profile!r} is set, but there is no {CONFIG} in {folder} or above",
        hint=f"write [profiles.{profile}] into {CONFIG}, or unset {PROFILE}",
    )


def _configured(folder: Path) -> str | None:
    for file, table in _tables(folder):
        if not isinstance(table.get("pipeline"), str):
            raise PipelineNotFound(f"{file}: the setting `pipeline` is missing or not a string")
        return str(table["pipeline"])
    return None


def _tables(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the configuration files of a folder, each with Tidemill's settings."""
    for file, section in ((folder / CONFIG, None), (folder / _PYPROJECT, "tidemill")):
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:  # a number with 5,000 digits is a ValueError
            raise PipelineNotFound(
                f"{file} cannot be read: {error}", hint="fix the syntax of the file"
            ) from None
        if section is not None:
            tools = table.get("tool", {})
            table = tools.get(section) if isinstance(tools, dict) else None
            if table is None:
                continue
        if not isinstance(table, dict):
            raise PipelineNotFound(
                f"{file}: tool.{section} is not a table", hint='write [tool.tidemill] and pipeline = "…"'
            )
        unknown = sorted(set(table) - _SETTINGS)
        if unknown:
            near = get_close_matches(unknown[0], _SETTINGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(sorted(_SETTINGS))}"
            raise PipelineNotFound(f"{file}: unknown setting `{unknown[0]}`", hint=hint)
        yield file, table


def _import_file(file: Path) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise PipelineNotFound(f"the file {file} does not exist")
    name = _module_name(file)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(file: Path) -> str:
    return f"tidemill_pipeline_{file.stem}"


def _import_module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def _in_module(module: ModuleType, name: str, target: str) -> "Pipeline":
    from tidemill.pipeline.pipeline import Pipeline

    if name:
        value = getattr(module, name, None)
        if not isinstance(value, Pipeline):
            problem = "does not exist" if value is None else f"has type {type(value).__name__}"
            raise PipelineNotFound(
                f"{target}: {name} {problem}", hint="use the name of a variable that holds a tm.Pipeline"
            )
        return value
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if not pipelines:
        raise PipelineNotFound(f"{target} has no pipeline", hint="assign a tm.Pipeline to a variable")
    if len({id(value) for value in pipelines.values()}) > 1:
        names = ", ".join(sorted(pipelines))
        raise PipelineNotFound(
            f"{target} has several pipelines: {names}", hint=f"choose one of them: {target}:NAME"
        )
    return next(iter(pipelines.values()))


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
