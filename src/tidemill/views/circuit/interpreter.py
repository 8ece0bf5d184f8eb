"""A whole circuit as one Spark SQL query: every operator a query over those before it.

Spark then computes the view from whole tables, operator by operator as the circuit says: what the
normaliser and the rewrites did to the query is judged by comparing that with the query itself.

An operator that one other reads stands inside of it, in parentheses; one that several read is a common table
expression. (Spark resolves a chain of common table expressions one by one, with all its rules each time, and
nested queries all at once: a circuit of ten operators costs it a third of the time.)
"""

from collections import Counter
from collections.abc import Callable, Sequence

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import InputTable, Opaque, Operator, SparkColumn, ViewOutput
from tidemill.views.circuit.render import Renderer, quoted


def interpret(output: ViewOutput, renderer: Renderer | None = None) -> str:
    """The query that computes a view by its circuit, with the view's names for its columns."""
    relations, tables = _nested(output, renderer or Renderer())
    chosen = ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(output.names))
    first = f"WITH {', '.join(tables)}\n" if tables else ""
    return f"{first}SELECT {chosen} FROM {relations[output.input]}"  # noqa: S608 - see render


def _nested(output: ViewOutput, renderer: Renderer) -> tuple[dict[Operator, str], list[str]]:
    """What stands for each operator in the text of its reader, and the common table expressions in order."""
    operators = list(walk(output))
    readers = Counter(child for operator in operators for child in operator.inputs)
    # The text of an opaque query has its own names for its inputs: nothing may stand between them and it.
    apart = {child for operator in operators if isinstance(operator, Opaque) for child in operator.inputs}
    relations: dict[Operator, str] = {}
    tables = []
    for place, operator in enumerate(operators):
        said = renderer.sql(operator, [relations[child] for child in operator.inputs])
        shared = readers[operator] > 1 and not isinstance(operator, InputTable)
        if shared or operator in apart:
            relations[operator] = f"__op{place}"
            tables.append(f"\n  __op{place} AS ({said})")
        else:
            relations[operator] = f"({said})"
    return relations, tables


def common_tables(
    root: Operator, renderer: Renderer, prefix: str = "__op"
) -> tuple[dict[Operator, str], list[str]]:
    """The names of all operators below a root, and their common table expressions in order."""
    names: dict[Operator, str] = {}
    tables = []
    for place, operator in enumerate(walk(root)):
        names[operator] = f"{prefix}{place}"
        said = renderer.sql(operator, [names[child] for child in operator.inputs])
        tables.append(f"\n  {names[operator]} AS ({said})")
    return names, tables


def types_query(root: Operator) -> tuple[list[Operator], str]:
    """Operators, and a query whose columns are structs of their columns:
    one question to Spark for all types.
    """
    names, tables = common_tables(root, Renderer())
    operators = [operator for operator in names if operator.width]
    relations = " CROSS JOIN ".join(names[operator] for operator in operators)
    chosen = []
    for place, operator in enumerate(operators):
        columns = ", ".join(f"'c{i}', {names[operator]}.c{i}" for i in range(operator.width))
        chosen.append(f"named_struct({columns}) AS s{place}")
    return operators, f"WITH {', '.join(tables)}\nSELECT {', '.join(chosen)} FROM {relations}"


def column_types(
    root: Operator, ask: Callable[[str], Sequence[SparkColumn]]
) -> dict[Operator, tuple[str, ...]]:
    """The types of all operators below and including the root, as Spark writes them.

    ask: Spark's analysis of a query, over tables that may be empty.
    """
    operators, sql = types_query(root)
    found: dict[Operator, tuple[str, ...]] = {}
    for operator, column in zip(operators, ask(sql), strict=True):
        found[operator] = tuple(kind for _, kind in struct_fields(column.type))
    return found


def struct_fields(struct: str) -> list[tuple[str, str]]:
    """The names and types of a struct's fields, from the text `struct<a:int,b:array<string>>`.

    >>> struct_fields("struct<c0:int,c1:struct<f:int,g:map<string,int>>,c2:decimal(10,2)>")
    [('c0', 'int'), ('c1', 'struct<f:int,g:map<string,int>>'), ('c2', 'decimal(10,2)')]
    """
    inside = struct.removeprefix("struct<").removesuffix(">")
    return [(name, kind) for name, _, kind in (part.partition(":") for part in split_list(inside) if part)]


def split_list(text: str) -> list[str]:
    """Split a list at its top-level commas.

    >>> split_list("string,map<string,decimal(4,2)>")
    ['string', 'map<string,decimal(4,2)>']
    """
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]
