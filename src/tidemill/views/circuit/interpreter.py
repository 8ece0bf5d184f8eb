"""The circuit of a view as one Spark SQL query, in which every operator is a subquery.

Spark then computes the view from complete tables, operator by operator. Certification compares the result
with the result of the original query. This tests the compiler and the rewrites.

An operator with one reader is a nested query. An operator with several readers is a common table expression.
Nesting is faster: Spark applies all its analysis rules to each common table expression separately, but to
nested queries at once. Nesting reduces the time for a circuit of ten operators to a third.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import InputTable, Opaque, Operator, SparkColumn, ViewOutput
from tidemill.views.circuit.render import Renderer, quoted


def interpret(output: ViewOutput, renderer: Renderer | None = None) -> str:
    """Return the query that computes a view from its circuit, with the view's column names."""
    relations, tables = _nested(output, renderer or Renderer())
    columns = ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(output.names))
    prefix = f"WITH {', '.join(tables)}\n" if tables else ""
    return f"{prefix}SELECT {columns} FROM {relations[output.input]}"  # noqa: S608 - see render


def _nested(output: ViewOutput, renderer: Renderer) -> tuple[dict[Operator, str], list[str]]:
    """Return the SQL of each operator for use in a FROM clause, and the common table expressions in order."""
    operators = list(walk(output))
    readers = Counter(child for operator in operators for child in operator.inputs)
    # The text of an opaque query names its inputs, so they must be common table expressions.
    opaque_inputs = {
        child for operator in operators if isinstance(operator, Opaque) for child in operator.inputs
    }
    relations: dict[Operator, str] = {}
    tables = []
    for number, operator in enumerate(operators):
        sql = renderer.sql(operator, [relations[child] for child in operator.inputs])
        shared = readers[operator] > 1 and not isinstance(operator, InputTable)
        if shared or operator in opaque_inputs:
            relations[operator] = f"__op{number}"
            tables.append(f"\n  __op{number} AS ({sql})")
        else:
            relations[operator] = f"({sql})"
    return relations, tables


def common_tables(
    root: Operator, renderer: Renderer, prefix: str = "__op"
) -> tuple[dict[Operator, str], list[str]]:
    """Return a name for every operator of a circuit, and their common table expressions in order."""
    names: dict[Operator, str] = {}
    tables = []
    for number, operator in enumerate(walk(root)):
        names[operator] = f"{prefix}{number}"
        sql = renderer.sql(operator, [names[child] for child in operator.inputs])
        tables.append(f"\n  {names[operator]} AS ({sql})")
    return names, tables


def types_query(root: Operator) -> tuple[list[Operator], str]:
    """Return all operators that have columns, and a query that returns the columns of each as one struct.

    One analysis of this query by Spark gives the types of all operators.
    """
    names, tables = common_tables(root, Renderer())
    operators = [operator for operator in names if operator.width]
    relations = " CROSS JOIN ".join(names[operator] for operator in operators)
    structs = []
    for number, operator in enumerate(operators):
        columns = ", ".join(f"'c{i}', {names[operator]}.c{i}" for i in range(operator.width))
        structs.append(f"named_struct({columns}) AS s{number}")
    return operators, f"WITH {', '.join(tables)}\nSELECT {', '.join(structs)} FROM {relations}"


def column_types(
    root: Operator, ask: Callable[[str], Sequence[SparkColumn]]
) -> dict[Operator, tuple[str, ...]]:
    """Return the column types of the root and all operators below it, as Spark writes them.

    ask: analyses a query with Spark; the tables may be empty.
    """
    operators, sql = types_query(root)
    types: dict[Operator, tuple[str, ...]] = {}
    for operator, column in zip(operators, ask(sql), strict=True):
        types[operator] = tuple(kind for _, kind in struct_fields(column.type))
    return types


def struct_fields(struct: str) -> list[tuple[str, str]]:
    """Parse the names and types of the fields of a struct, such as `struct<a:int,b:array<string>>`.

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
    for index, char in enumerate(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
