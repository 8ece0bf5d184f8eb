"""Lineage: the tree of what a future was computed from, for a terminal, a notebook or a program (FUT-58)."""

import html
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Failure
from tidemill.store import Store, Tx

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

MOST, DEEPEST = 1_000, 100
"""A tree has at most so many futures and levels: the nearest ones."""

PAGE = 100

STYLES = {
    "realized": "green",
    "claimed": "blue",
    "failed": "red",
    "quarantined": "red",
    "cancelled": "yellow",
    "unsatisfiable": "yellow",
}


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """One future and its inputs. `again`: it stands further up already; `more`: inputs that were left out."""

    id: bytes
    name: str
    state: str
    error: str = ""
    children: tuple["Lineage", ...] = ()
    again: bool = False
    more: int = 0

    def __iter__(self) -> "Iterator[Lineage]":
        """This one, then everything below it."""
        yield self
        for child in self.children:
            yield from child

    def __str__(self) -> str:
        return "\n".join(self._lines("", ""))

    def _lines(self, first: str, rest: str) -> Iterator[str]:
        yield f"{first}{self.name} [{self.state}] {self.id.hex()}{self._remark()}"
        last = len(self.children) - 1
        for number, child in enumerate(self.children):
            end = number == last and not self.more
            yield from child._lines(rest + ("└─ " if end else "├─ "), rest + ("   " if end else "│  "))
        if self.more:
            yield f"{rest}└─ … {self.more:,} more"

    def _remark(self) -> str:
        return (" (above)" if self.again else "") + (f"  {self.error}" if self.error else "")

    def __rich__(self) -> "Tree":
        from rich.tree import Tree

        tree = Tree(self._line())
        self._grow(tree)
        return tree

    def _line(self) -> "Text":
        from rich.text import Text

        style = STYLES.get(self.state, "dim")
        return Text.assemble(
            (self.name, "bold"),
            " ",
            (self.state, style),
            " ",
            (self.id.hex(), "dim"),
            (self._remark(), style),
        )

    def _grow(self, tree: "Tree") -> None:
        for child in self.children:
            child._grow(tree.add(child._line()))
        if self.more:
            tree.add(f"… {self.more:,} more")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "id": self.id.hex(),
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "inputs": [child.to_json() for child in self.children],
            "again": self.again,
            "more": self.more,
        }


class _Found(msgspec.Struct, frozen=True):
    name: str
    state: str
    error: str
    inputs: tuple[bytes, ...]


def trace(store: Store, keys: FutureKeys, future_id: bytes, *, most: int = MOST) -> Lineage:
    """The lineage of a future, read a level at a time; each future's inputs are followed once."""
    found: dict[bytes, _Found] = {}
    level = [future_id]
    for _ in range(DEEPEST):
        level = level[: most - len(found)]
        for start in range(0, len(level), PAGE):
            page = level[start : start + PAGE]
            found.update(zip(page, store.run(partial(_read, keys=keys, ids=page)), strict=True))
        inputs = (one for seen in level for one in found[seen].inputs)
        level = [one for one in dict.fromkeys(inputs) if one not in found]
    return _tree(future_id, found, set())


def _tree(root: bytes, found: dict[bytes, _Found], seen: set[bytes]) -> Lineage:
    """From the bottom up, without recursion: a chain may be longer than Python's stack."""
    order: list[tuple[bytes, bool]] = []
    stack = [root]
    while stack:
        one = stack.pop()
        again = one in seen and bool(found[one].inputs)
        order.append((one, again))
        if one not in seen:
            seen.add(one)
            stack += [up for up in reversed(found[one].inputs) if up in found]
    made: list[Lineage] = []
    for one, again in reversed(order):
        what = found[one]
        count = 0 if again else sum(up in found for up in what.inputs)
        children = tuple(reversed(made[len(made) - count :])) if count else ()
        del made[len(made) - count :]
        made.append(
            Lineage(
                id=one,
                name=what.name,
                state=what.state,
                error=what.error,
                children=children,
                again=again,
                more=0 if again else len(what.inputs) - count,
            )
        )
    return made[0]


def _read(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> list[_Found]:
    asked = [key for one in ids for key in (keys.spec[one], keys.future[one], keys.error[one])]
    raws = iter(tx.get_many(asked))
    return [_found(spec, row, error) for spec, row, error in zip(raws, raws, raws, strict=True)]


def _found(spec_raw: bytes | None, row_raw: bytes | None, error_raw: bytes | None) -> _Found:
    if spec_raw is None or row_raw is None:
        return _Found("?", "gone", "", ())
    spec, row = rows.decode_spec(spec_raw), rows.decode_row(row_raw)
    failure = rows.decode_failure(error_raw) if error_raw is not None else None
    return _Found(spec.name, row.state.value, _error(row, failure), tuple(dict.fromkeys(spec.inputs)))


def _error(row: AnyRow, failure: Failure | None) -> str:
    if failure is None or row.state.value not in ("failed", "quarantined"):
        return ""
    text = f"{failure.type}: {failure.message}" if failure.type else failure.message or failure.kind
    return text.partition("\n")[0][:120]
