"""The tables an arc writes, from what a user says of them."""

from collections.abc import Mapping, Sequence

from tidemill.errors import DeclarationError
from tidemill.lots import checks as expectations
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Drift
from tidemill.pipeline.declarations import SinkDecl


def sinks_of(
    writes: str | Sequence[str] | Mapping[str, str],
    *,
    partition_by: str | Sequence[str],
    schema: str | None,
    checks: Sequence[Check] | Mapping[str, Sequence[Check]],
    drift: str,
) -> tuple[SinkDecl, ...]:
    """The tables of an arc, each with what is expected of it; the arguments are those of `Pipeline.arc`."""
    by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if drift not in (Drift.FREEZE, Drift.EVOLVE):
        raise DeclarationError(f"drift={drift!r}", hint="what an arc makes can freeze or evolve")
    tables = _tables(writes, schema)
    expected = _expected([name for name, _ in tables], checks)
    return tuple(
        SinkDecl(
            name=name,
            partition_by=by,
            schema=ddl,
            checks=expectations.of(expected.get(name, ())),
            drift=Drift(drift),
        )
        for name, ddl in tables
    )


def _tables(
    writes: str | Sequence[str] | Mapping[str, str], schema: str | None
) -> Sequence[tuple[str, str | None]]:
    """The names of the tables, each with its schema as far as it is given."""
    if isinstance(writes, Mapping):
        return list(writes.items())
    names = (writes,) if isinstance(writes, str) else tuple(writes)
    if schema is not None and len(names) != 1:
        raise DeclarationError(f"one schema for {len(names)} tables", hint="writes={name: schema}")
    return [(name, schema) for name in names]


def _expected(
    names: Sequence[str], checks: Sequence[Check] | Mapping[str, Sequence[Check]]
) -> Mapping[str, Sequence[Check]]:
    """The checks by table."""
    if not isinstance(checks, Mapping):
        if checks and len(names) > 1:
            raise DeclarationError(f"one list of checks for {len(names)} tables", hint="checks={name: […]}")
        return dict.fromkeys(names, checks)
    strange = [name for name in checks if name not in names]
    if strange:
        raise DeclarationError(
            f"checks of {strange[0]}, which this arc does not write", hint=f"it writes {', '.join(names)}"
        )
    return checks
