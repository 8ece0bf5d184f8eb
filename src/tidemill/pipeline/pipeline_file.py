"""Finding a pipeline: by `-f shop.py:shop`, or by the `tidemill.toml` or `pyproject.toml` above us.

A file is imported under a name of its own, with its folder on the path as `python shop.py` would have it, so
that modules beside it can be imported. What the user's file raises is told with its place in that file.
"""

import importlib
import importlib.util
import sys
import tomllib
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineNotFound, TidemillError

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

CONFIG = "tidemill.toml"
_PYPROJECT = "pyproject.toml"


def find(target: str | None = None, start: Path | None = None) -> "Pipeline":
    """The pipeline that is meant.

    Args:
        target: `file.py:name`, `package.module:name`, or a file alone that has one pipeline.
        start: where to look for a configuration from, upwards.
    """
    return load(*locate(target, start))


def locate(target: str | None = None, start: Path | None = None) -> tuple[str, Path]:
    """Which pipeline is meant, without importing it: its target, and the folder that is relative to."""
    if target is not None:
        return target, Path.cwd()
    folder = (start or Path.cwd()).resolve()
    for above in (folder, *folder.parents):
        said = _configured(above)
        if said is not None:
            return said, above
    raise PipelineNotFound(f"no {CONFIG} in {folder} or above")


def load(target: str, folder: Path) -> "Pipeline":
    """Import a pipeline; `folder` is what a relative file is relative to."""
    where, _, name = target.partition(":")
    try:
        module = _import_file(folder / where) if where.endswith(".py") else _import_module(where, folder)
    except TidemillError:
        raise
    except (Exception, SystemExit) as error:  # a file that ends its process is no reason to end ours
        raise PipelineNotFound(f"{target} cannot be imported: {_place(error)}") from error
    return _in_module(module, name, target)


def _configured(folder: Path) -> str | None:
    for file, section in ((folder / CONFIG, None), (folder / _PYPROJECT, "tidemill")):
        if not file.is_file():
            continue
        try:
            said: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PipelineNotFound(f"{file} cannot be read: {error}", hint="mend the file") from None
        if section is not None:
            said = said.get("tool", {}).get(section)
            if said is None:
                continue
        if not isinstance(said.get("pipeline"), str):
            raise PipelineNotFound(f"{file} names no pipeline")
        return str(said["pipeline"])
    return None


def _import_file(file: Path) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise PipelineNotFound(f"there is no file {file}")
    name = f"tidemill_pipeline_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
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


def _import_module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def _in_module(module: ModuleType, name: str, target: str) -> "Pipeline":
    from tidemill.pipeline.pipeline import Pipeline

    if name:
        found = getattr(module, name, None)
        if not isinstance(found, Pipeline):
            what = "is not there" if found is None else f"is a {type(found).__name__}"
            raise PipelineNotFound(f"{target}: {name} {what}", hint="name a variable that holds a Pipeline")
        return found
    all_of_them = {key: one for key, one in vars(module).items() if isinstance(one, Pipeline)}
    if len({id(one) for one in all_of_them.values()}) != 1:
        names = ", ".join(sorted(all_of_them)) or "none"
        raise PipelineNotFound(
            f"{target} has not one pipeline but: {names}", hint=f"say which: {target}:name"
        )
    return next(iter(all_of_them.values()))


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
