"""A circuit: the outputs of all views in a group, which share equal operators.

Operators are values, so a circuit only maps view names to outputs. Equal operators have equal fingerprints
and are shared. If a view reads another view of the group, it has an `InputTable` with the name of that other
view. `linked` replaces this input with the other view's output, so that one step advances both views.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tidemill.views.circuit.ids import Pins, ids
from tidemill.views.circuit.operators import InputTable, Operator, ViewOutput


@dataclass(frozen=True)
class Circuit:
    """Outputs by view name, and the notes that `explain` shows for each view."""

    outputs: Mapping[str, ViewOutput]
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def operators(self) -> list[Operator]:
        """List every operator once, inputs first. The order depends only on the views."""
        return list(walk(*(self.outputs[name] for name in sorted(self.outputs))))

    def sources(self) -> list[InputTable]:
        return [operator for operator in self.operators() if isinstance(operator, InputTable)]

    def ids(self, pins: Pins) -> dict[Operator, str]:
        """Return the id of every operator."""
        return ids(self.operators(), pins)

    def consumers(self) -> dict[Operator, list[Operator]]:
        """Return the readers of each operator; a reader that reads the operator twice is listed twice."""
        readers: dict[Operator, list[Operator]] = {operator: [] for operator in self.operators()}
        for operator in self.operators():
            for child in operator.inputs:
                readers[child].append(operator)
        return readers

    def linked(self) -> "Circuit":
        """Return the circuit, with inputs that are views of the group replaced by the outputs of these views.

        The caller has already rejected cycles.
        """
        linked: dict[str, ViewOutput] = {}
        for name in self.outputs:
            self._link(name, linked)
        return Circuit({name: linked[name] for name in self.outputs}, self.notes)

    def linked_output(self, view: str) -> ViewOutput:
        """Return the output of one view, linked as by `linked`."""
        return self._link(view, {})

    def _link(self, view: str, linked: dict[str, ViewOutput]) -> ViewOutput:
        """Link the output of a view and of the views that it reads, and add them to `linked`."""
        if view not in linked:
            output = self.outputs[view]
            reads = [operator.table for operator in walk(output) if isinstance(operator, InputTable)]
            inner = {name: self._link(name, linked) for name in reads if name in self.outputs}
            linked[view] = replace_views(output, inner)
        return linked[view]


def walk(*roots: Operator) -> Iterator[Operator]:
    """Yield the roots and all operators below them, inputs first, without duplicates."""
    visited: set[Operator] = set()
    stack: list[tuple[Operator, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        operator, below_done = stack.pop()
        if operator in visited:
            continue
        if below_done:
            visited.add(operator)
            yield operator
        else:
            stack.append((operator, True))
            stack += [(child, False) for child in reversed(operator.inputs)]


def replace_views(output: ViewOutput, views: Mapping[str, ViewOutput]) -> ViewOutput:
    """Replace inputs that are views by the outputs of these views."""

    def replace_input(operator: Operator) -> Operator:
        return views.get(operator.table, operator) if isinstance(operator, InputTable) else operator

    replaced = map_operators(output, replace_input)
    assert isinstance(replaced, ViewOutput)
    return replaced


def map_operators(root: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """Apply `change` to every operator, inputs first; a shared operator is changed once."""
    new_operators: dict[Operator, Operator] = {}
    for operator in walk(root):
        inputs = [new_operators[child] for child in operator.inputs]
        same = all(new is old for new, old in zip(inputs, operator.inputs, strict=True))
        new_operators[operator] = change(operator if same else operator.with_inputs(inputs))
    return new_operators[root]
