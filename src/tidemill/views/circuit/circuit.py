"""A circuit: the outputs of the views of a group, with shared operators.

Operators are values, so a circuit only maps view names to outputs. Equal operators have equal fingerprints
and are shared. A view that reads another view of the group has an `InputTable` with its name. `linked`
replaces that input by the other view's output, so that one step advances both views.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tidemill.views.circuit.ids import Pins, ids
from tidemill.views.circuit.operators import InputTable, Operator, ViewOutput


@dataclass(frozen=True)
class Circuit:
    """Outputs by the names of their views, with the notes that `explain` shows beside them."""

    outputs: Mapping[str, ViewOutput]
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def operators(self) -> list[Operator]:
        """Every operator once, inputs before those that read them; the order depends on the views alone."""
        return list(walk(*(self.outputs[name] for name in sorted(self.outputs))))

    def sources(self) -> list[InputTable]:
        return [operator for operator in self.operators() if isinstance(operator, InputTable)]

    def ids(self, pins: Pins) -> dict[Operator, str]:
        """The id of every operator."""
        return ids(self.operators(), pins)

    def consumers(self) -> dict[Operator, list[Operator]]:
        """Who reads each operator; one that reads it twice stands there twice."""
        found: dict[Operator, list[Operator]] = {operator: [] for operator in self.operators()}
        for operator in self.operators():
            for child in operator.inputs:
                found[child].append(operator)
        return found

    def linked(self) -> "Circuit":
        """With the output of a view wherever another view reads it.
        Views that read each other are refused above.
        """
        done: dict[str, ViewOutput] = {}

        def of(name: str) -> ViewOutput:
            if name not in done:
                changed = replaced(self.outputs[name], source)
                assert isinstance(changed, ViewOutput)
                done[name] = changed
            return done[name]

        def source(operator: Operator) -> Operator:
            if isinstance(operator, InputTable) and operator.table in self.outputs:
                return of(operator.table)
            return operator

        return Circuit({name: of(name) for name in self.outputs}, self.notes)


def walk(*roots: Operator) -> Iterator[Operator]:
    """Operators below and including the roots, each once, inputs first."""
    seen: set[Operator] = set()
    stack: list[tuple[Operator, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        operator, below_done = stack.pop()
        if operator in seen:
            continue
        if below_done:
            seen.add(operator)
            yield operator
        else:
            stack.append((operator, True))
            stack += [(child, False) for child in reversed(operator.inputs)]


def replaced(root: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """The tree with `change` applied to every operator, inputs first; shared operators are changed once."""
    done: dict[Operator, Operator] = {}
    for operator in walk(root):
        inputs = [done[child] for child in operator.inputs]
        same = all(new is old for new, old in zip(inputs, operator.inputs, strict=True))
        done[operator] = change(operator if same else operator.with_inputs(inputs))
    return done[root]
