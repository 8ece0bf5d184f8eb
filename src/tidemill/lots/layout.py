"""Where things are in object storage: names that say everything a report needs (LOT-21 to LOT-24).

    arcs/project=P/version=V/arc=A/lot=L/{running|complete|partial|missing}.arc
    datasets/name=D/version=V/lot=L/state=S/gen=G/attempt=T/manifest.json    (or manifest-root.json)
    datasets/name=D/version=V/lot=L/state=S/gen=G/attempt=T/part=N/manifest.json
    data/name=D/version=V/lot=L/attempt=T/{partition columns}/*.parquet

Names of people go into these as they are where that is safe, and percent-encoded where it is not, so that
`=`, `/`, quotes, blanks and any script round-trip and no name can reach out of its folder. Everything that is
written during an attempt carries the attempt, so two attempts never share a folder (LOT-17).
"""

from urllib.parse import unquote

from tidemill.errors import BadName
from tidemill.lots.manifest import ManifestState

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
_MOST = 200  # bytes of one encoded name: several fit a key, and `name=` and endings fit a file's name
ARC_STATES = ("running", "complete", "partial", "missing")


def quote(name: str) -> str:
    """A name as part of a key: one spelling for each name, reversible by `unquote`."""
    if not name:
        raise BadName("an empty name", hint="name it")
    encoded = "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in name)
    if encoded.strip(".") == "":  # a folder called `.` or `..`
        encoded = encoded.replace(".", "%2E")
    if len(encoded) > _MOST:
        raise BadName(f"the name {name[:40]!r}… is too long", hint=f"{_MOST} bytes at most, percent-encoded")
    return encoded


def unquoted(part: str) -> str:
    """The name in a key's part."""
    return unquote(part, errors="strict")


def lot_prefix(dataset: str, version: str, lot: str) -> str:
    """Below which all manifests of a lot are."""
    return f"datasets/name={quote(dataset)}/version={quote(version)}/lot={quote(lot)}/"


def manifest_key(
    dataset: str,
    version: str,
    lot: str,
    state: ManifestState,
    generation: int,
    attempt: str,
    *,
    part: str = "",
    root: bool = False,
) -> str:
    """A manifest's own name; `root` for the one that lists the parts' manifests."""
    attempt_path = f"state={state}/gen={generation:06}/attempt={quote(attempt)}/"
    if part:
        attempt_path += f"part={quote(part)}/"
    return (
        lot_prefix(dataset, version, lot) + attempt_path + ("manifest-root.json" if root else "manifest.json")
    )


def projected_manifest_key(dataset: str, version: str, lot: str, state: ManifestState) -> str:
    """The name without attempt: a projection of what the store says, written after the commit (LOT-23)."""
    return lot_prefix(dataset, version, lot) + f"state={state}/manifest.json"


def data_prefix(dataset: str, version: str, lot: str, attempt: str) -> str:
    """The folder one attempt writes its data into, and nobody else."""
    return f"data/name={quote(dataset)}/version={quote(version)}/lot={quote(lot)}/attempt={quote(attempt)}/"


def arc_key(project: str, version: str, arc: str, lot: str, state: str) -> str:
    """The projection of an arc's state for a lot: an empty object whose name says it all (LOT-22)."""
    if state not in ARC_STATES:
        raise BadName(f"{state!r} is no state of an arc", hint=f"one of {', '.join(ARC_STATES)}")
    folder = f"arcs/project={quote(project)}/version={quote(version)}/arc={quote(arc)}/lot={quote(lot)}/"
    return f"{folder}{state}.arc"


def parse_key(key: str) -> dict[str, str]:
    """The `name=value` parts of a key, and its last part as `file`."""
    *folders, file = key.split("/")
    found = {"kind": folders[0]} if folders else {}
    for folder in folders[1:]:
        name, _, value = folder.partition("=")
        found[name] = unquoted(value)
    return found | {"file": file}
