"""Templates: an arc declared on a pattern of datasets has one subscription for each that matches (HEAP-12).

Two things compel an instantiation, and both go in pages, behind a cursor that whoever tends moves on:
declaring the template, for the datasets that are there; and the wake row of a publication, for the dataset it
is of, if that is new. Children are born as scheduled (INV3), and the sweep pushes them.

A child is named after the template and its dataset. While the template lives it cannot be removed (INV6);
when the template goes, its children stay and are like any other.
"""

import msgspec

from tidemill.errors import BadTemplate, TemplateChanged, TemplateUnknown
from tidemill.lots import datasets, layout
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.patterns import Pattern
from tidemill.triggers.subscriptions import AnyRow, Scheduled
from tidemill.triggers.terms import Terms

PAGE = 100
MOST = 1000
"""Templates of one cluster: all are looked at when one is declared."""

ASIDE = quarantine_of(DatasetId("")).name
WRITES = 800
"""A page ends early when its transaction has so many writes: children may have many sources."""


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is declared.

    - reads: a pattern of datasets, e.g. `raw_*`.
    - writes: what a child writes, e.g. `clean_{name}`; empty for one that writes no dataset.
    - also: what else it writes.
    - version: of the datasets it reads.
    - terms: of each child; its sources come behind the one that matches.
    - paused: children are born so.
    """

    name: str
    reads: str
    writes: str = ""
    also: tuple[str, ...] = ()
    version: str = "1"
    terms: Terms = Terms(sources=())
    paused: bool = False

    @property
    def pattern(self) -> Pattern:
        return Pattern.parse(self.reads)

    @property
    def targets(self) -> list[Pattern]:
        """All that its children write."""
        return [Pattern.parse_target(one) for one in (self.writes, *self.also) if one]

    def child(self, dataset: DatasetId) -> str:
        """The name of the child for a dataset."""
        return f"{self.name}[{dataset.name}]"

    def matches(self, dataset: DatasetId) -> bool:
        """Whether there is a child for this dataset. What was set aside of a table is matched only by a
        pattern that ends so.
        """
        pattern = self.pattern
        aside = dataset.name.endswith(ASIDE) and not pattern.suffix.endswith(ASIDE)
        return dataset.version == self.version and not aside and pattern.match(dataset.name) is not None


_decoder = msgspec.msgpack.Decoder(Template)


def declare(tx: Tx, keys: TriggerKeys, template: Template) -> Template:
    """Enter a template, or find it. An equal one is a no-op; one with other terms gives them to its children;
    another pattern, target or table is refused. One that would write what it reads, or what leads back to it
    by way of others, is refused (`BadTemplate`).
    """
    old = find(tx, keys, template.name)
    if old == template:
        return old
    if old is not None and (old.reads, old.writes, old.also, old.version, old.terms.tables) != (
        template.reads,
        template.writes,
        template.also,
        template.version,
        template.terms.tables,
    ):
        raise TemplateChanged(f"template {template.name!r} is declared differently")
    layout.quote(template.name)
    check_circles(template, listed(tx, keys, limit=MOST))
    tx.set(keys.template[template.name], msgspec.msgpack.encode(template), quiet=True)
    tx.set(keys.templating[template.name], b"", quiet=True)
    tx.hint(keys.wakeup)
    return template


def check_circles(new: Template, others: list[Template]) -> None:
    """Follow what is written to whoever reads it; `BadTemplate` when that leads back to the new one."""
    pattern, front = new.pattern, new.targets
    for target, text in zip(front, [one for one in (new.writes, *new.also) if one], strict=True):
        if target.meets(pattern):
            raise BadTemplate(
                f"template {new.name!r} reads {new.reads!r} and writes {text!r}, which it would read again",
                hint="give its targets another beginning or ending than its sources have",
            )
    seen = set[str]()
    while front:
        written = front.pop()
        for other in others:
            if other.name in (new.name, *seen) or not written.meets(other.pattern):
                continue
            seen.add(other.name)
            if any(target.meets(pattern) for target in other.targets):
                raise BadTemplate(
                    f"template {new.name!r} would read what it writes, by way of {other.name!r}",
                    hint="templates must not go round in a circle",
                )
            front += other.targets


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a template; its children stay, and may be removed from then on."""
    if tx.get(keys.template[name]) is None:
        return False
    tx.clear(keys.template[name], quiet=True)
    tx.clear(keys.templating[name], quiet=True)
    return True


def remove_children(tx: Tx, keys: TriggerKeys, name: str, limit: int = PAGE) -> bool:
    """Remove a page of the children of a template that was removed; True when there may be more."""
    lo, hi = keys.subscription[f"{name}["], keys.subscription[f"{name}\\"]
    page = tx.range(lo, hi, limit=limit, snapshot=True)
    ours = [row.key for row in page if subscriptions.decode(row.value).tally.template == name]
    for key in ours:
        subscriptions.remove(tx, keys, str(keys.subscription.unpack(key)[0]))
    return bool(ours) and len(page) == limit


def children(tx: Tx, keys: TriggerKeys, name: str) -> dict[str, AnyRow]:
    """The children of a template that there are."""
    lo, hi = keys.subscription[f"{name}["], keys.subscription[f"{name}\\"]  # the character behind the bracket
    found: dict[str, AnyRow] = {}
    while page := tx.range(lo, hi, limit=PAGE, snapshot=True):
        for row in page:
            decoded = subscriptions.decode(row.value)
            if decoded.tally.template == name:
                found[str(keys.subscription.unpack(row.key)[0])] = decoded
        lo = page[-1].key + b"\x00"
    return found


def find(tx: Tx, keys: TriggerKeys, name: str) -> Template | None:
    """A template."""
    raw = tx.get(keys.template[name])
    return None if raw is None else _decoder.decode(raw)


def must_find(tx: Tx, keys: TriggerKeys, name: str) -> Template:
    """A template; `TemplateUnknown` when there is none."""
    found = find(tx, keys, name)
    if found is None:
        raise TemplateUnknown(f"there is no template {name!r}")
    return found


def listed(tx: Tx, keys: TriggerKeys, after: str = "", limit: int = PAGE) -> list[Template]:
    """A page of templates by name."""
    lo, hi = keys.template.all()
    if after:
        lo = keys.template[after] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit)]


def page_templates(tx: Tx, keys: TriggerKeys, lots: LotKeys, limit: int = PAGE) -> bool:
    """Instantiate a template that was declared for the next datasets; True when there may be more to do."""
    cursors = tx.range(*keys.templating.all(), limit=1)
    if not cursors:
        return False
    cursor = cursors[0]
    template = must_find(tx, keys, str(keys.templating.unpack(cursor.key)[0]))
    prefix = template.pattern.prefix
    after = DatasetId(prefix, "")
    if cursor.value:
        after = DatasetId(*msgspec.msgpack.decode(cursor.value, type=tuple[str, str]))
    page = [one.id for one in datasets.listed(tx, lots, after if prefix or cursor.value else None, limit)]
    for dataset in page:
        if not dataset.name.startswith(prefix):
            break
        if template.matches(dataset):
            instantiate(tx, keys, lots, template, dataset)
        if tx.writes > WRITES:
            tx.set(cursor.key, msgspec.msgpack.encode(dataset.parts), quiet=True)
            return True
    else:
        if len(page) == limit:
            tx.set(cursor.key, msgspec.msgpack.encode(page[-1].parts), quiet=True)
            return True
    tx.clear(cursor.key, quiet=True)
    return True


def instantiate(tx: Tx, keys: TriggerKeys, lots: LotKeys, template: Template, dataset: DatasetId) -> str:
    """The child for a dataset: made as scheduled, or found and given the template's terms; its name."""
    name = template.child(dataset)
    sources = (dataset, *template.terms.sources)
    terms = msgspec.structs.replace(template.terms, sources=sources)
    born = subscriptions.read(tx, keys, name) is None
    row = subscriptions.subscribe(tx, keys, lots, name, terms, attach=True, template=template.name)
    assert not born or isinstance(row, Scheduled), f"INV3: {name} was born {row.state}"
    if born and template.paused:
        subscriptions.pause(tx, keys, name)
    return name


def instantiate_for(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, dataset: DatasetId, after: str, limit: int
) -> str | None:
    """Children of the next templates for a dataset that was published; the last template, None at the end."""
    page = listed(tx, keys, after, limit)
    for template in page:
        if template.matches(dataset):
            instantiate(tx, keys, lots, template, dataset)
        if tx.writes > WRITES:
            return template.name
    return page[-1].name if len(page) == limit else None
