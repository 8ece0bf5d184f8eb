"""Templates: an arc declared for a pattern of datasets has one subscription per matching dataset (HEAP-12).

These subscriptions are the children of the template. Schedulers create them in two cases: for existing
datasets, after the template is declared; and for a new dataset, when they handle the wake row of its first
publication. In both cases they work in pages, and any scheduler continues from the stored cursor. A new child
is scheduled (INV3), and the scheduler pushes its item.

A child is named after the template and its dataset. It cannot be removed while the template exists (INV6).
When the template is removed, its children stay as ordinary subscriptions.
"""

import msgspec

from tidemill.errors import BadTemplate, InvariantBroken, TemplateChanged, TemplateUnknown
from tidemill.lots import datasets, layout
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.patterns import Pattern
from tidemill.triggers.subscriptions import AnyRow, Creation, Scheduled
from tidemill.triggers.terms import Terms

PAGE = 100
MOST = 1000
"""The maximum number of templates in a cluster. Declaring a template reads all of them."""

QUARANTINE_SUFFIX = quarantine_of(DatasetId("")).name
WRITES = 800
"""A page ends early after this many writes in its transaction: children may have many inputs."""


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declaration of a template.

    - reads: a pattern of datasets, such as `raw_*`.
    - writes: the dataset that a child writes, such as `clean_{name}`; empty if it writes none.
    - also: other datasets that a child writes.
    - version: the version of the datasets it reads.
    - terms: the terms of each child. A child reads the matching dataset, and then the inputs in the terms.
    - paused: create children paused.
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
        """The patterns of all datasets that its children write."""
        return [Pattern.parse_target(text) for text in (self.writes, *self.also) if text]

    def child(self, dataset: DatasetId) -> str:
        """Return the name of the child for a dataset."""
        return f"{self.name}[{dataset.name}]"

    def matches(self, dataset: DatasetId) -> bool:
        """Return whether this dataset gets a child.

        A quarantine table matches only if the pattern ends with the suffix of quarantine tables.
        """
        pattern = self.pattern
        if dataset.name.endswith(QUARANTINE_SUFFIX) and not pattern.suffix.endswith(QUARANTINE_SUFFIX):
            return False
        return dataset.version == self.version and pattern.match(dataset.name) is not None


_decoder = msgspec.msgpack.Decoder(Template)


def declare(tx: Tx, keys: TriggerKeys, template: Template) -> Template:
    """Store a template, or update the stored one.

    Changed terms are passed on to its children. A changed pattern, target or table is refused with
    `TemplateChanged`. A template that reads what it writes, directly or through other templates, is refused
    with `BadTemplate`.
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
        raise TemplateChanged(f"template {template.name!r} was already declared with a different definition")
    layout.quote(template.name)
    check_cycles(template, listed(tx, keys, limit=MOST))
    tx.set(keys.template[template.name], msgspec.msgpack.encode(template), quiet=True)
    tx.set(keys.templating[template.name], b"", quiet=True)
    tx.hint(keys.wakeup)
    return template


def check_cycles(new: Template, others: list[Template]) -> None:
    """Raise `BadTemplate` if the template would read its own output, directly or through other templates."""
    pattern, front = new.pattern, new.targets
    for target, text in zip(front, [text for text in (new.writes, *new.also) if text], strict=True):
        if target.meets(pattern):
            raise BadTemplate(
                f"template {new.name!r} writes {text!r}, which matches its own pattern {new.reads!r}",
                hint="choose target names that the pattern does not match",
            )
    visited = set[str]()
    while front:
        written = front.pop()
        for other in others:
            if other.name in (new.name, *visited) or not written.meets(other.pattern):
                continue
            visited.add(other.name)
            if any(target.meets(pattern) for target in other.targets):
                raise BadTemplate(
                    f"template {new.name!r} would read its own output through {other.name!r}",
                    hint="choose target names that break the cycle",
                )
            front += other.targets


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a template. Its children stay, and can be removed from now on."""
    if tx.get(keys.template[name]) is None:
        return False
    tx.clear(keys.template[name], quiet=True)
    tx.clear(keys.templating[name], quiet=True)
    return True


def remove_children(tx: Tx, keys: TriggerKeys, name: str, limit: int = PAGE) -> bool:
    """Remove a page of the children of a removed template; return True if there may be more."""
    lo, hi = keys.subscription[f"{name}["], keys.subscription[f"{name}\\"]
    page = tx.range(lo, hi, limit=limit, snapshot=True)
    of_template = [row.key for row in page if subscriptions.decode(row.value).tally.template == name]
    for key in of_template:
        subscriptions.remove(tx, keys, str(keys.subscription.unpack(key)[0]))
    return bool(of_template) and len(page) == limit


def children(tx: Tx, keys: TriggerKeys, name: str) -> dict[str, AnyRow]:
    """Return the existing children of a template."""
    lo, hi = keys.subscription[f"{name}["], keys.subscription[f"{name}\\"]  # the character after the bracket
    rows: dict[str, AnyRow] = {}
    while page := tx.range(lo, hi, limit=PAGE, snapshot=True):
        for row in page:
            decoded = subscriptions.decode(row.value)
            if decoded.tally.template == name:
                rows[str(keys.subscription.unpack(row.key)[0])] = decoded
        lo = page[-1].key + b"\x00"
    return rows


def find(tx: Tx, keys: TriggerKeys, name: str) -> Template | None:
    """Read a template, if there is one."""
    raw = tx.get(keys.template[name])
    return None if raw is None else _decoder.decode(raw)


def must_find(tx: Tx, keys: TriggerKeys, name: str) -> Template:
    """Read a template; raise `TemplateUnknown` if there is none."""
    template = find(tx, keys, name)
    if template is None:
        raise TemplateUnknown(f"there is no template {name!r}")
    return template


def listed(tx: Tx, keys: TriggerKeys, after: str = "", limit: int = PAGE) -> list[Template]:
    """Return a page of templates, ordered by name."""
    lo, hi = keys.template.all()
    if after:
        lo = keys.template[after] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit)]


def page_templates(tx: Tx, keys: TriggerKeys, lots: LotKeys, limit: int = PAGE) -> bool:
    """Instantiate a declared template for the next page of datasets; return True if there may be more."""
    cursors = tx.range(*keys.templating.all(), limit=1)
    if not cursors:
        return False
    cursor = cursors[0]
    template = must_find(tx, keys, str(keys.templating.unpack(cursor.key)[0]))
    prefix = template.pattern.prefix
    after = DatasetId(prefix, "")
    if cursor.value:
        after = DatasetId(*msgspec.msgpack.decode(cursor.value, type=tuple[str, str]))
    page = [row.id for row in datasets.listed(tx, lots, after if prefix or cursor.value else None, limit)]
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
    """Create the child for a dataset, or give an existing child the template's terms; return its name."""
    name = template.child(dataset)
    sources = (dataset, *template.terms.sources)
    terms = msgspec.structs.replace(template.terms, sources=sources)
    is_new = subscriptions.read(tx, keys, name) is None
    creation = Creation(scheduled=True, template=template.name)
    row = subscriptions.subscribe(tx, keys, lots, name, terms, creation=creation)
    if is_new and not isinstance(row, Scheduled):
        raise InvariantBroken(
            f"INV3: {name} was created in state {row.state.value} instead of state scheduled"
        )
    if is_new and template.paused:
        subscriptions.pause(tx, keys, name)
    return name


def instantiate_for(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, dataset: DatasetId, after: str, limit: int
) -> str | None:
    """Instantiate the next page of templates for a published dataset.

    Return the name of the last template on the page; None if there are no more pages.
    """
    page = listed(tx, keys, after, limit)
    for template in page:
        if template.matches(dataset):
            instantiate(tx, keys, lots, template, dataset)
        if tx.writes > WRITES:
            return template.name
    return page[-1].name if len(page) == limit else None
