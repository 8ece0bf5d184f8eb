"""The columns of a table over time: what each revision of its schema added, changed and removed."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import BadSchema
from tidemill.schemas import ddl
from tidemill.ui.model.answers import SchemaRevision


@dataclass(frozen=True)
class Revision:
    """A revision of a schema: its columns with their types, and how they differ from those before.

    - text: the schema as it is stored, if it cannot be parsed.
    """

    number: int
    columns: tuple[tuple[str, str], ...]
    added: tuple[tuple[str, str], ...] = ()
    changed: tuple[tuple[str, str, str], ...] = ()
    removed: tuple[str, ...] = ()
    text: str = ""


def history(schemas: Sequence[SchemaRevision]) -> list[Revision]:
    """Return the revisions of a schema, newest first.

    >>> old = SchemaRevision(revision=0, schema="id INT")
    >>> newest, _ = history([old, SchemaRevision(revision=1, schema="id BIGINT, n INT")])
    >>> newest.added, newest.changed
    ((('n', 'int'),), (('id', 'int', 'bigint'),))
    """
    revisions: list[Revision] = []
    before: dict[str, str] | None = None
    for each in schemas:
        try:
            now = {column.name: str(column.type) for column in ddl.parse(each.schema).columns}
        except BadSchema:
            revisions.append(Revision(each.revision, (), text=each.schema))
            continue
        old = now if before is None else before
        revisions.append(
            Revision(
                number=each.revision,
                columns=tuple(now.items()),
                added=tuple((name, kind) for name, kind in now.items() if name not in old),
                changed=tuple(
                    (name, old[name], kind) for name, kind in now.items() if old.get(name, kind) != kind
                ),
                removed=tuple(name for name in old if name not in now),
            )
        )
        before = now
    return revisions[::-1]
