"""Let a view read views of other groups: its own group computes them too.

Groups apply the same steps at different times, so a step of one group cannot read a table of another group.
The group of the reader contains the operators of the other views, down to the datasets, and has its own state
for them. At the same step, both groups have the same rows, because the query of a copied view must have
exactly one result.
"""

from collections.abc import Iterable, Mapping

from tidemill.errors import DeclarationError
from tidemill.pipeline.plan.circuits import ViewCircuit
from tidemill.runner.program import ViewProgram
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.operators import Opaque, ViewOutput
from tidemill.views.circuit.rungs import rungs
from tidemill.views.circuit.ties import depends_on_ties, has_one_result


def copied_views(
    reader: str,
    reads: Iterable[str],
    planned: Mapping[str, ViewProgram],
    circuits: Mapping[str, ViewCircuit],
) -> list[ViewProgram]:
    """Return views of other groups, with all views that they read, inputs first.

    Args:
        reader: the view that reads them, for messages.
        reads: the views of other groups that it reads.
        planned: the views that are planned so far.
        circuits: their circuits.

    Raises:
        DeclarationError: a view cannot be computed in two groups.
    """
    copied: dict[str, ViewProgram] = {}

    def add(name: str) -> None:
        if name in copied:
            return
        view = planned[name]
        why = _why_not(view, circuits.get(name))
        if why:
            raise DeclarationError(
                f"view {reader} cannot read {name}, a view of another group: {why}",
                hint="declare both views with the same group=",
            )
        for inner in (*view.copied, *view.views):
            add(inner)
        copied[name] = view

    for name in reads:
        add(name)
    return list(copied.values())


def with_copied(
    output: ViewOutput, copied: Iterable[ViewProgram], circuits: Mapping[str, ViewCircuit]
) -> ViewOutput:
    """Return the circuit of a view with the operators of the views that its group copies."""
    outputs = {view.name: circuits[view.name].output for view in copied}
    if not outputs:
        return output
    return Circuit({**outputs, "": output}).linked_output("")


def _why_not(view: ViewProgram, circuit: ViewCircuit | None) -> str:
    """Say why two groups cannot both compute a view; empty if they can."""
    if view.function is not None or circuit is None:
        return "it is a function"
    if view.clock is not None:
        return "its query uses the clock"
    if any(isinstance(operator, Opaque) for operator in walk(circuit.written)):
        return "a part of its query cannot be analysed"
    if circuit.functions:
        return "its query calls a declared function"
    output = circuit.output
    random = not all(placed.deterministic for placed in rungs(output).values())
    if random or (depends_on_ties(output) and not has_one_result(output)):
        return "its query can have several results"
    return ""
