"""The oracle: it knows every row that was sent, and the tables and views that follow from these rows.

`expected` computes the tables and views in plain Python. `read` reads them through the store, the manifests
and the files, without Spark. `differences` names every row that is lost or counted twice. The changes of a
view, summed over all its steps, must be the rows of the view: they are what a follower of the view reads.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tidemill as tm
from tests import shop
from tests.soak import inputs
from tests.soak.inputs import Row
from tests.soak.pipeline import GROUPS, NAME, TABLES, VIEWS
from tidemill.publish.manifests import Manifests
from tidemill.views.steps import commits
from tidemill.views.steps.commits import StepRow

Tables = dict[str, Counter[Row]]
ALL = 1 << 20
CHANGES, STEPS = "{} (changes)", "{} (steps)"


class Difference(NamedTuple):
    """A row that is in a table more or less often than it must be."""

    table: str
    row: Row
    wanted: int
    stored: int

    def __str__(self) -> str:
        word = "lost" if self.stored < self.wanted else "doubled" if self.wanted else "unknown"
        return f"{self.table}: {word} {self.row}: {self.stored} times instead of {self.wanted}"


def expected(sent: Mapping[str, int]) -> Tables:
    """Return what every table and view holds after these batches; a counter of rows for each."""
    orders = [row for n in range(sent["orders"]) for row in inputs.orders(n)]
    clicks = [row for n in range(sent["clicks"]) for row in inputs.clicks(n)]
    payments = [row for n in range(sent["payments"]) for row in inputs.payments(n)]
    customers: dict[int, str] = {}
    for n in range(sent["customers"]):
        operation, rows = inputs.customers(n)
        for row in rows:
            if operation == "upsert":
                customers[row[0]] = row[1]
            else:
                customers.pop(row[0], None)
    cleaned = [row for row in orders if row[3] > 0]
    refused = [row for row in orders if row[3] <= 0]
    doubled = [(*row[:3], 2 * row[3]) for row in cleaned]
    tidy_clicks = [(*row, row[0] % 7) for row in clicks]
    tidy_payments = [(*row, row[0] % 7) for row in payments]
    ledger = [
        (kind, row[0])
        for kind, rows in (("order", doubled), ("refused", refused), ("click", clicks), ("payment", payments))
        for row in rows
    ]
    by_tier = _grouped((customers[row[1]], row[3]) for row in doubled if row[1] in customers)
    tiers = [(tier, len(amounts), sum(amounts)) for tier, amounts in by_tier.items()]
    best = max((total for _, _, total in tiers), default=None)
    amounts = _grouped((row[2], row[3]) for row in doubled)
    pages = _grouped((row[1], row[2]) for row in clicks)
    buckets = _grouped((row[3], row[2]) for row in tidy_payments)
    kinds = _grouped(ledger)
    tables: dict[str, Iterable[Row]] = {
        "orders": orders,
        "cleaned": cleaned,
        "refused": refused,
        "doubled": doubled,
        "raw_clicks": clicks,
        "raw_payments": payments,
        "tidy_clicks": tidy_clicks,
        "tidy_payments": tidy_payments,
        "ledger": ledger,
        "tiers": list(customers.items()),
        "regions": [(key, len(rows), len(rows), sum(rows)) for key, rows in amounts.items()],
        "by_tier": tiers,
        "all_tiers": [(len(tiers), sum(n for _, n, _ in tiers) if tiers else None, best)],
        "pages": [(key, len(rows), len(rows), sum(rows)) for key, rows in pages.items()],
        "buckets": [(key, len(rows), sum(rows)) for key, rows in buckets.items()],
        "kinds": [(key, len(rows), len(rows)) for key, rows in kinds.items()],
    }
    counted = {name: Counter(rows) for name, rows in tables.items()}
    return counted | {CHANGES.format(name): counted[name] for name in VIEWS}


def _grouped(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def read(pipeline: tm.Pipeline) -> Tables:
    """Read every table and view, and the changes of every view, without Spark."""
    tables: Tables = {name: Counter(shop.table(pipeline, name)) for name in TABLES}
    tables |= {name: Counter(shop.view(pipeline, name)) for name in VIEWS}
    return tables | {CHANGES.format(name): rows for name, rows in _changes(pipeline).items()}


def _changes(pipeline: tm.Pipeline) -> Tables:
    """Return the sum of all changes of each view."""
    context = pipeline.context
    manifests = Manifests(context.objects, context.clock)
    changes: Tables = {name: Counter() for name in VIEWS}
    for row in _steps(pipeline):
        for output in row.outputs:
            items = manifests.lot_objects(output.changes) if output.changes else ()
            for *columns, weight in shop.read(context, items):
                changes[output.view][tuple(columns[:-2])] += weight
    return {name: Counter({row: n for row, n in rows.items() if n}) for name, rows in changes.items()}


def _steps(pipeline: tm.Pipeline) -> list[StepRow]:
    context = pipeline.context
    return [
        row
        for group in GROUPS
        for row in context.store.run(
            lambda tx, group=group: commits.rows(tx, context.keys, NAME, group, 0, 1 << 60, ALL)  # type: ignore[misc]
        )
    ]


def differences(wanted: Tables, stored: Tables) -> list[Difference]:
    """Return every row whose count differs, in any table or view."""
    return [
        Difference(table, row, rows[row], stored.get(table, Counter())[row])
        for table, rows in wanted.items()
        for row in rows.keys() | stored.get(table, Counter()).keys()
        if rows[row] != stored.get(table, Counter())[row]
    ]


def digest(rows: Counter[Row]) -> str:
    """Return a digest of rows and their counts, which does not depend on their order."""
    total = 0
    for row, count in rows.items():
        total += count * int.from_bytes(hashlib.sha256(repr(row).encode()).digest()[:16], "big")
    return f"{total % 2**128:032x}"


def digests(pipeline: tm.Pipeline, tables: Tables) -> dict[str, str]:
    """Return a digest for each table and view; for views also the digest that their last step recorded."""
    result = {name: digest(rows) for name, rows in tables.items()}
    for row in _steps(pipeline):  # the last step of each view is read last
        result |= {STEPS.format(output.view): output.content for output in row.outputs}
    missing = [name for name in VIEWS if not result.get(STEPS.format(name))]
    assert not missing, f"the steps of {missing} recorded no digest"
    return result
