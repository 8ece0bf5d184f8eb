"""A whole circuit as one Spark SQL query: every operator a common table expression over those before it.

Spark then computes the view from whole tables, operator by operator as the circuit says: what the
normaliser and the rewrites did to the query is judged by comparing that with the query itself.
"""

from collections.abc import Mapping

from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.expr import Now
from tidemill.views.circuit.operators import Operator, Output
from tidemill.views.circuit.render import Renderer, quoted


def interpret(output: Output, renderer: Renderer | None = None) -> str:
    """The query that computes a view by its circuit, with the view's names for its columns."""
    names, tables = named(output, renderer or Renderer())
    chosen = ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(output.names))
    return f"WITH {', '.join(tables)}\nSELECT {chosen} FROM {names[output]}"


def named(root: Operator, renderer: Renderer, prefix: str = "__op") -> tuple[dict[Operator, str], list[str]]:
    """The names of all operators below a root, and their common table expressions in order."""
    names: dict[Operator, str] = {}
    tables = []
    for place, operator in enumerate(walk(root)):
        names[operator] = f"{prefix}{place}"
        said = renderer.sql(operator, [names[child] for child in operator.inputs])
        tables.append(f"\n  {names[operator]} AS ({said})")
    return names, tables


def probe(root: Operator) -> tuple[list[Operator], str]:
    """Operators, and a query whose columns are structs of their columns:
    one question to Spark for all types.
    """
    names, tables = named(root, Renderer())
    operators = [operator for operator in names if operator.width]
    relations = " CROSS JOIN ".join(names[operator] for operator in operators)
    chosen = []
    for place, operator in enumerate(operators):
        columns = ", ".join(f"'c{i}', {names[operator]}.c{i}" for i in range(operator.width))
        chosen.append(f"named_struct({columns}) AS s{place}")
    return operators, f"WITH {', '.join(tables)}\nSELECT {', '.join(chosen)} FROM {relations}"


def interpreted(circuit: Circuit, now: Mapping[Now, str] | None = None) -> dict[str, str]:
    """The queries of all views of a circuit."""
    return {view: interpret(output, Renderer(now)) for view, output in circuit.outputs.items()}
