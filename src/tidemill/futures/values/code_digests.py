"""The digest of code. It changes when the behaviour of a function changes (LOT-18, LOT-20).

The digest of a call (`call_digests`) identifies a function by its name. This is enough to recognize a call
that the same code submits again. But a stored result, such as a part of a lot, must not be reused after the
code that computed it has changed. So this digest covers a function's byte code, constants and defaults, and
the values that the function uses: enclosing variables, globals of its module, and names from other modules.
If such a value is a function or class of the user's code, the digest covers the code of that value too. The
user's code is the function's own package and every file that is not part of an installed library. For
functions and classes of an installed library, the digest covers only the names.

For a value that cannot be pickled (a session, a lock, a pipeline), the digest covers only the type. If the
pickle of a value differs between processes, so does the digest. In that case no result is reused.
"""

import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cloudpickle

from tidemill.futures.values.call_digests import DIGEST_BYTES, members_of, names_itself, shape_of
from tidemill.futures.values.pickling import PROTOCOL

_PACKAGE = Path(__file__).parents[2]

OF_SPARK = frozenset({"pyspark", "py4j"})
"""Libraries wherever they are: a cluster's own Spark adds its folder `python` to the path."""

LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Folders of installed libraries, also those of another environment that is on the path."""


def code_digest(function: Callable[..., object]) -> bytes:
    """Return the digest of a function's behaviour."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return _Code(package).digest(function, frozenset())


class _Code:
    """Computes digests, and decides which code belongs to the user."""

    def __init__(self, package: str) -> None:
        self._package = package
        paths = sysconfig.get_paths()
        installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._installed = [Path(path).resolve() for path in installed] + [_PACKAGE]

    def digest(self, value: object, above: frozenset[int]) -> bytes:
        """Return the digest of a value. `above` are the functions and classes that contain it."""
        for fast in (True, False):
            state = blake2b(digest_size=DIGEST_BYTES, person=b"tidemill-code")
            pickler = _Pickler(state, self, above)
            pickler.fast = fast  # without references between objects, unless the value contains itself
            try:
                pickler.dump(value)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112 - methods of the value may raise anything
                continue
            return state.digest()
        kind = type(value)
        return blake2b(f"{kind.__module__}.{kind.__qualname__}".encode(), digest_size=DIGEST_BYTES).digest()

    def is_users(self, module: str | None) -> bool:
        """Return whether this module is the user's code."""
        if not module:
            return False
        if module == "__main__" or (self._package and module.partition(".")[0] == self._package):
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            return False
        path = Path(file).resolve()
        if module.partition(".")[0] in OF_SPARK or not LIBRARY_FOLDERS.isdisjoint(path.parts):
            return False
        return not any(path.is_relative_to(folder) for folder in self._installed)

    def of_function(self, function: types.FunctionType, above: frozenset[int]) -> object:
        """Return the parts of a function that its digest covers."""
        code = function.__code__
        names = sorted({name for inner in _codes(code) for name in inner.co_names})
        around = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        used = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
        return (
            shape_of(code),
            self.digest(function.__defaults__, above),
            self.digest(sorted((function.__kwdefaults__ or {}).items()), above),
            [(name, self.digest(_content(cell), above)) for name, cell in sorted(around.items())],
            [(name, self._used(value, names, above)) for name, value in used],
            self.digest(sorted(vars(function).items()), above),
        )

    def _used(self, value: object, names: list[str], above: frozenset[int]) -> object:
        """Return the digest of a global. A user's module counts only with names that the function may use."""
        if isinstance(value, types.ModuleType) and self.is_users(value.__name__) and id(value) not in above:
            inner = above | {id(value)}
            members = [(name, getattr(value, name)) for name in names if name in vars(value)]
            return value.__name__, [(name, self._used(member, names, inner)) for name, member in members]
        return self.digest(value, above)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    def __init__(self, state: Any, code: _Code, above: frozenset[int]) -> None:
        super().__init__(_Out(state), protocol=PROTOCOL)
        self._code = code
        self._above = above

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) in (set, frozenset):
            return "set", type(obj).__name__, *sorted(self._code.digest(item, self._above) for item in obj)
        if isinstance(obj, types.FunctionType | type) and self._is_code(obj):
            if id(obj) in self._above:
                return "itself", obj.__qualname__
            inner = self._above | {id(obj)}
            if isinstance(obj, types.FunctionType):
                return "code", obj.__qualname__, self._code.of_function(obj, inner)
            members = [(name, self._code.digest(value, inner)) for name, value in members_of(obj)]
            bases = [self._code.digest(base, inner) for base in obj.__bases__]
            return "class", obj.__qualname__, bases, members
        return None

    def _is_code(self, obj: types.FunctionType | type) -> bool:
        return self._code.is_users(obj.__module__) or not names_itself(obj)


class _Out:
    def __init__(self, state: Any) -> None:
        self._state = state

    def write(self, piece: Any) -> int:
        self._state.update(piece)
        return len(piece)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects inside it: comprehensions, lambdas, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
