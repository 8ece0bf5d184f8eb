"""The select list: stars expanded, and every item with its name and the expression it stands for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, column
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import NamedColumn, NameScope


@dataclass
class SelectItem:
    """One column of the select list. `node` is its expression in the query, None for one that a star brought.

    `names` has several for a generator that makes several columns. Until it is known `expr` is None.
    """

    node: exp.Expr | None
    names: tuple[str | None, ...]
    expr: Expr | None = None

    @property
    def name(self) -> str | None:
        return self.names[0] if self.names else None


def select_items(front: QueryContext, scope: NameScope, projections: Sequence[exp.Expr]) -> list[SelectItem]:
    """The items, in order."""
    return [item for node in projections for item in _expanded(front, scope, node)]


def _expanded(front: QueryContext, scope: NameScope, node: exp.Expr) -> Iterator[SelectItem]:
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        yield from (SelectItem(None, (one.name,), column(one.index)) for one in _star(front, scope, node))
    elif isinstance(node, exp.Aliases):
        yield SelectItem(node.this, tuple(one.name for one in node.expressions))
    elif isinstance(node, exp.Alias):
        alias = node.args["alias"]
        if not isinstance(alias, exp.Identifier):
            raise KeptWhole("an item whose name is not read")
        yield SelectItem(node.this, (alias.name,))
    elif isinstance(node, exp.Column):
        yield SelectItem(node, (node.parts[-1].name,))
    elif isinstance(node, exp.Dot):
        yield SelectItem(node, (node.expression.name,))
    else:
        yield SelectItem(node, ())


def _star(front: QueryContext, scope: NameScope, node: exp.Expr) -> list[NamedColumn]:
    qualifier = None
    if isinstance(node, exp.Column):
        table = node.args.get("table")
        assert table is not None
        qualifier = table.name
        if not any(scope.same(one, qualifier) for one in scope.qualifiers()):
            if any(scope.same(one, qualifier) for one in scope.names()):
                raise KeptWhole("the fields of a struct by a star")
            raise front.unknown("table", qualifier, scope.qualifiers(), table)
    star = node.this if isinstance(node, exp.Column) else node
    if star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
        raise KeptWhole("a star that replaces or renames")
    shown = scope.star(qualifier)
    for left_out in star.args.get("except_") or []:
        if isinstance(left_out, exp.Column) and len(left_out.parts) > 1:
            raise KeptWhole("a star that leaves out by a dotted name")
        kept = [one for one in shown if not scope.same(one.name, left_out.name)]
        if len(kept) == len(shown):
            raise front.unknown("column", left_out.name, [one.name for one in shown if one.name], left_out)
        shown = kept
    return shown
