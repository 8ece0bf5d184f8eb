"""The digest of code: another one as soon as what a function does is another (LOT-18, LOT-20).

A call is known by the name of its function (`digests`): a child is submitted again by the same code. What is
kept for longer than a process, such as the parts of an arc's lot, must not outlive a change of the code that
made it, wherever the function stands. So here a function is known by its byte code, constants, defaults, and
by the values it uses: variables around it, globals of its module, and what it takes from other modules. The
same goes for functions and classes of these, as far as they are the user's: of the package that the function
belongs to, or of any file that is not installed. Installed libraries go by their names.

A value that no pickle can take (a session, a lock, a pipeline) counts by its type alone. Values whose pickles
differ from process to process make digests that do: whoever uses such a value runs all again each time.
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


def code_digest(function: Callable[..., object]) -> bytes:
    """The digest of what a function does."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return _Code(package).digest(function, frozenset())


class _Code:
    """Digests, given which code is the user's."""

    def __init__(self, package: str) -> None:
        self._package = package
        paths = sysconfig.get_paths()
        installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._installed = [Path(path).resolve() for path in installed] + [_PACKAGE]

    def digest(self, value: object, above: frozenset[int]) -> bytes:
        """Of any value. `above` are the functions and classes around it: they may refer to themselves."""
        for fast in (True, False):
            state = blake2b(digest_size=DIGEST_BYTES, person=b"tidemill-code")
            pickler = _Pickler(state, self, above)
            pickler.fast = fast  # without references between objects, unless it refers to itself
            try:
                pickler.dump(value)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112 - whatever the value's own methods raise
                continue
            return state.digest()
        kind = type(value)
        return blake2b(f"{kind.__module__}.{kind.__qualname__}".encode(), digest_size=DIGEST_BYTES).digest()

    def is_users(self, module: str | None) -> bool:
        """Is this module code that the user may change?"""
        if not module:
            return False
        if module == "__main__" or (self._package and module.partition(".")[0] == self._package):
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            return False
        path = Path(file).resolve()
        return not any(path.is_relative_to(folder) for folder in self._installed)

    def of_function(self, function: types.FunctionType, above: frozenset[int]) -> object:
        """What a function is made of."""
        code = function.__code__
        names = sorted({name for one in _codes(code) for name in one.co_names})
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
        """A global; of a module of the user's, what the function may take from it."""
        if isinstance(value, types.ModuleType) and self.is_users(value.__name__) and id(value) not in above:
            inner = above | {id(value)}
            taken = [(name, getattr(value, name)) for name in names if name in vars(value)]
            return value.__name__, [(name, self._used(one, names, inner)) for name, one in taken]
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
    """A code and those inside of it: comprehensions, lambdas, inner functions."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # assigned later, or never
        return None
