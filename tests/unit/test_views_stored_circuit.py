"""Circuits are stored and read again: equal operators, shared subtrees, and every kind of operator."""

import dataclasses

from tests.unit.views_stage import output
from tidemill.views.circuit import stored_circuit
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import KINDS, NamedInput, Opaque, Operator, ViewOutput

QUERIES = [
    "SELECT id, upper(kind) AS kind FROM events WHERE at > now() - INTERVAL 1 DAY",
    "SELECT day, count(*) AS n, sum(amount) FILTER (WHERE cust > 3) AS s FROM orders GROUP BY day",
    "SELECT cust, day, max(amount) AS m FROM orders GROUP BY GROUPING SETS ((cust), (cust, day), ())",
    "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust <=> c.id AND o.amount > 2",
    "SELECT id FROM orders WHERE cust NOT IN (SELECT id FROM customers WHERE region = 'x')",
    "SELECT DISTINCT cust FROM orders EXCEPT ALL SELECT id FROM customers",
    "SELECT id, tag FROM events LATERAL VIEW OUTER explode(tags) t AS tag",
    "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY day DESC, id) AS n FROM orders",
    "SELECT id FROM orders ORDER BY amount DESC NULLS LAST, id LIMIT 3",
    "SELECT id, amount - (SELECT avg(amount) FROM orders) AS above FROM orders",
    "SELECT 1 AS a, 'x' AS b UNION ALL SELECT id, kind FROM events",
]


def opaque() -> ViewOutput:
    """Return a circuit with a part that stays text."""
    (source,) = [op for op in walk(output("SELECT id FROM orders")) if op.kind == "source"]
    inner = Opaque(
        (source,), (NamedInput("orders", ("id",)),), "SELECT id FROM orders", 1, "no reason", ("f",)
    )
    return ViewOutput(inner, ("id",), ("bigint",))


def same(circuit: Operator, other: Operator) -> bool:
    """Compare all fields, also those that are not part of a fingerprint."""
    return repr(circuit) == repr(other) and circuit == other


def test_a_circuit_is_read_as_it_was_stored() -> None:
    circuits = [*map(output, QUERIES), opaque()]
    for circuit in circuits:
        (restored,) = stored_circuit.decode(stored_circuit.encode([circuit]))
        assert same(restored, circuit)
    kinds = {type(operator) for circuit in circuits for operator in walk(circuit)}
    assert kinds == set(KINDS), "a query for every kind of operator"


def test_circuits_that_share_operators_are_stored_once() -> None:
    circuit = output(QUERIES[1])
    other = dataclasses.replace(circuit, names=("a", "b", "c"))
    raw = stored_circuit.encode([circuit, other])
    assert len(raw) < 1.3 * len(stored_circuit.encode([circuit]))
    first, second = stored_circuit.decode(raw)
    assert first.inputs[0] is second.inputs[0]
    assert same(second, other)
