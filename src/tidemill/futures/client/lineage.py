"""Lineage: the tree of futures that a future was computed from (FUT-58)."""

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
"""The maximum number of futures and of levels in a tree. The nearest futures are kept."""

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
    """One future and its inputs.

    - again: whether its inputs are already shown further up.
    - more: how many inputs were left out.
    """

    id: bytes
    name: str
    state: str
    error: str = ""
    children: tuple["Lineage", ...] = ()
    again: bool = False
    more: int = 0

    def __iter__(self) -> "Iterator[Lineage]":
        """Yield this future, then all futures below it."""
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
        """Return the tree as JSON values."""
        return {
            "id": self.id.hex(),
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "inputs": [child.to_json() for child in self.children],
            "again": self.again,
            "more": self.more,
        }


class _Summary(msgspec.Struct, frozen=True):
    name: str
    state: str
    error: str
    inputs: tuple[bytes, ...]


def trace(store: Store, keys: FutureKeys, future_id: bytes, *, most: int = MOST) -> Lineage:
    """Read the lineage of a future, one level at a time. The inputs of each future are followed once."""
    summaries: dict[bytes, _Summary] = {}
    level = [future_id]
    for _ in range(DEEPEST):
        level = level[: most - len(summaries)]
        for start in range(0, len(level), PAGE):
            page = level[start : start + PAGE]
            summaries.update(zip(page, store.run(partial(_read, keys=keys, ids=page)), strict=True))
        inputs = (upstream for node in level for upstream in summaries[node].inputs)
        level = [upstream for upstream in dict.fromkeys(inputs) if upstream not in summaries]
    return _tree(future_id, summaries)


def _tree(root: bytes, summaries: dict[bytes, _Summary]) -> Lineage:
    """Build the tree from the bottom up, without recursion: a chain may be longer than Python's stack."""
    visited: set[bytes] = set()
    order: list[tuple[bytes, bool]] = []
    stack = [root]
    while stack:
        future_id = stack.pop()
        again = future_id in visited and bool(summaries[future_id].inputs)
        order.append((future_id, again))
        if future_id not in visited:
            visited.add(future_id)
            stack += [upstream for upstream in reversed(summaries[future_id].inputs) if upstream in summaries]
    nodes: list[Lineage] = []
    for future_id, again in reversed(order):
        summary = summaries[future_id]
        count = 0 if again else sum(upstream in summaries for upstream in summary.inputs)
        children = tuple(reversed(nodes[len(nodes) - count :])) if count else ()
        del nodes[len(nodes) - count :]
        nodes.append(
            Lineage(
                id=future_id,
                name=summary.name,
                state=summary.state,
                error=summary.error,
                children=children,
                again=again,
                more=0 if again else len(summary.inputs) - count,
            )
        )
    return nodes[0]


def _read(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> list[_Summary]:
    spaces = (keys.spec, keys.future, keys.error)
    raws = iter(tx.get_many([space[future_id] for future_id in ids for space in spaces]))
    return [_summarize(spec, row, error) for spec, row, error in zip(raws, raws, raws, strict=True)]


def _summarize(spec_raw: bytes | None, row_raw: bytes | None, error_raw: bytes | None) -> _Summary:
    if spec_raw is None or row_raw is None:
        return _Summary("?", "gone", "", ())
    spec, row = rows.decode_spec(spec_raw), rows.decode_row(row_raw)
    failure = rows.decode_failure(error_raw) if error_raw is not None else None
    return _Summary(spec.name, row.state.value, _error(row, failure), tuple(dict.fromkeys(spec.inputs)))


def _error(row: AnyRow, failure: Failure | None) -> str:
    if failure is None or row.state.value not in ("failed", "quarantined"):
        return ""
    text = f"{failure.type}: {failure.message}" if failure.type else failure.message or failure.kind
    return text.partition("\n")[0][:120]
