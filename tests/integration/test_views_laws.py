"""Laws of whole chains: steps cut, ordered, spread or repeated give views the digests of DBSP-20.

The exchange stays in this process. Kernels, row expressions, keyed queries and state are those of a job.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from tests.integration import views_oracle
from tests.integration.views_kernels import Kernels, digests
from tidemill.testing import Step
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.kernels.zsets import total_digest

TABLES = {
    "orders": "cust INT, item STRING, n INT, price DECIMAL(10,2), x DOUBLE",
    "customers": "id INT, region STRING",
}
QUERIES = {
    "joined": "SELECT c.region, o.item, o.x FROM orders o JOIN customers c ON o.cust = c.id WHERE o.n > 1",
    "totals": """
        SELECT c.region, count(*) AS n, sum(o.x) AS x, avg(o.price) AS mean, min(o.n) AS least,
               max(o.item) AS last
        FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region""",
    "everything": "SELECT count(*) AS n, sum(x) AS x FROM orders",
    "items": "SELECT DISTINCT item FROM orders",
    "quiet": "SELECT id FROM customers EXCEPT SELECT cust FROM orders",
    "left": "SELECT c.id, o.item FROM customers c LEFT JOIN orders o ON c.id = o.cust",
    "ranked": """
        SELECT cust, item, n, sum(n) OVER (PARTITION BY cust ORDER BY n, item, price, x) AS so_far
        FROM orders""",
}


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Orders, which are told apart by their numbers."""
    amounts = [0.1, -0.1, 1e16, 0.2, 3e-5]
    return [
        {
            "cust": n % 5,
            "item": f"i{n % 9}",
            "n": n % 4,
            "price": Decimal(n) / 4,
            "x": amounts[n % 5] * (n + 1),
        }
        for n in numbers
    ]


def customer(n: int, region: str) -> dict[str, Any]:
    return {"id": n, "region": region}


BASE = Step(
    {
        "orders": rows([n for n in range(30) if n % 9 < 7]),
        "customers": [customer(n, "ns"[n % 2]) for n in range(4)],
    }
)
STEPS = [
    Step({"orders": rows(range(30, 38)), "customers": [customer(9, "n")]}, {"customers": [customer(1, "s")]}),
    Step({"customers": [customer(1, "w"), customer(7, "w")]}, {"orders": rows([2, 3, 9])}),
    Step({"orders": rows([40, 41, 40])}, {"orders": rows([12, 21]), "customers": [customer(0, "n")]}),
]
"""In any order: they take away only what was there before all of them."""


def inverse(step: Step) -> Step:
    return Step(step.deletes, step.inserts)


def merged(steps: Sequence[Step]) -> Step:
    def every(many: Sequence[Any]) -> dict[str, list[Any]]:
        return {name: [row for changes in many for row in changes.get(name, ())] for name in TABLES}

    return Step(every([step.inserts for step in steps]), every([step.deletes for step in steps]))


def halves(step: Step) -> list[Step]:
    return [
        Step(
            {name: some[part::2] for name, some in step.inserts.items()},
            {name: some[part::2] for name, some in step.deletes.items()},
        )
        for part in (0, 1)
    ]


@pytest.fixture(scope="module")
def loaded(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """All views after their first step, in three ranges."""
    with views_oracle.stage(spark, {}, TABLES) as known:
        outputs = {n: rewrite(views_oracle.compiled(spark, known, sql).output) for n, sql in QUERIES.items()}
        kernels = Kernels(
            spark,
            tmp_path_factory.mktemp("state"),
            TABLES,
            outputs,
            kinds=dict.fromkeys(TABLES, "changes"),
        )
        assert kernels.group.views == set(QUERIES), kernels.group.reasons
        kernels.step(BASE)
    return kernels


@pytest.fixture(scope="module")
def taken(loaded: Kernels) -> tuple[list[dict[str, int]], Kernels]:
    """The digests of all steps in order, in one range, and the kernels after the last step."""
    kernels = loaded.fork("one", 1)
    return [digests(kernels.step(step)) for step in STEPS], kernels


def content(steps: Sequence[dict[str, int]]) -> dict[str, int]:
    """The digest of what steps come to together (DBSP-42)."""
    total = {view: total_digest(step.get(view, 0) for step in steps) for view in QUERIES}
    return {view: digest for view, digest in total.items() if digest}


@pytest.mark.rule("DBSP-1", "DBSP-20", "DBSP-42")
def test_seven_ranges_and_a_replay_give_every_lot_the_same_digest(
    loaded: Kernels, taken: tuple[list[dict[str, int]], Kernels]
) -> None:
    seven = loaded.fork("seven", 7)
    for step, expected in zip(STEPS[:2], taken[0][:2], strict=True):
        again = seven.fork("again", 7)
        assert digests(seven.step(step)) == expected
        if step is STEPS[0]:
            assert digests(again.step(step)) == expected
            assert again.state() == seven.state()
    assert set(taken[0][0]) == set(QUERIES), "the first one changes them all"


@pytest.mark.rule("DBSP-20", "DBSP-42")
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([STEPS[2], STEPS[0], STEPS[1]], id="permuted"),
        pytest.param([merged(STEPS)], id="merged"),
        pytest.param(
            [*halves(STEPS[0]), merged([*halves(STEPS[1])[1:], STEPS[2]]), halves(STEPS[1])[0]], id="split"
        ),
    ],
)
def test_steps_permuted_merged_or_split_leave_the_same_tables_and_state(
    loaded: Kernels, taken: tuple[list[dict[str, int]], Kernels], steps: list[Step], request: Any
) -> None:
    in_order, other = taken[1], loaded.fork(request.node.callspec.id, 2)
    assert content([digests(other.step(step)) for step in steps]) == content(taken[0])
    assert {view: other.contents[view] for view in QUERIES} == {
        view: in_order.contents[view] for view in QUERIES
    }
    assert settled(other) == settled(in_order)


@pytest.mark.rule("DBSP-20")
def test_a_change_and_its_inverse_leave_no_residue(loaded: Kernels) -> None:
    other = loaded.fork("inverse", 2)
    there, back = digests(other.step(STEPS[0])), digests(other.step(inverse(STEPS[0])))
    assert set(there) == set(QUERIES)
    assert content([there, back]) == {}
    assert settled(other) == settled(loaded)
    assert other.contents == loaded.contents


def settled(kernels: Kernels) -> dict[str, Any]:
    """The state but for the best values of a min or max: more of them may be known, and never wrong ones."""
    return {name: rows for name, rows in kernels.state().items() if f"{name}.all" not in kernels.chain.traces}
