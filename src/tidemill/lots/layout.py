"""Object names of lots, which contain everything that a report needs (LOT-21 to LOT-24).

    arcs/project=P/version=V/arc=A/lot=L/{running|complete|partial|missing}.arc
    datasets/name=D/version=V/lot=L/state=S/gen=G/attempt=T/manifest.json    (or manifest-root.json)
    datasets/name=D/version=V/lot=L/state=S/gen=G/attempt=T/part=N/manifest.json
    data/name=D/version=V/lot=L/attempt=T/{partition columns}/*.parquet

Names that users choose appear unchanged where that is safe, and percent-encoded otherwise. So names with `=`,
`/`, quotes, blanks and letters of any script can be decoded again, and no name can point outside its folder.
Every object that an attempt writes has the attempt in its name, so two attempts never share a folder
(LOT-17).
"""

from urllib.parse import unquote

from tidemill.errors import BadName
from tidemill.lots.manifest import ManifestState

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
# The maximum length of an encoded name. Several such names fit into a key, and one with a prefix and a suffix
# fits into a file name.
_MAX_BYTES = 200
ARC_STATES = ("running", "complete", "partial", "missing")


def quote(name: str) -> str:
    """Encode a name for use in an object key. Each name has one encoding; `unquoted` reverses it."""
    if not name:
        raise BadName("the name is empty", hint="use a non-empty name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadName(f"the name {name!a:.80} is not valid Unicode", hint="use another name") from None
    encoded = "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in name)
    if encoded.strip(".") == "":  # would be the folder `.` or `..`
        encoded = encoded.replace(".", "%2E")
    if len(encoded) > _MAX_BYTES:
        raise BadName(
            f"the name {name[:40]!r}… is too long",
            hint=f"use at most {_MAX_BYTES} bytes, counted after percent-encoding",
        )
    return encoded


def unquoted(part: str) -> str:
    """Decode a name from a segment of an object key."""
    return unquote(part, errors="strict")


def lot_prefix(dataset: str, version: str, lot: str) -> str:
    """Return the prefix of all manifests of a lot."""
    return f"datasets/name={quote(dataset)}/version={quote(version)}/lot={quote(lot)}/"


def dataset_prefixes(dataset: str, version: str) -> tuple[str, str]:
    """Return the prefixes of all data and of all manifests of a dataset, in the order to delete them."""
    folder = f"name={quote(dataset)}/version={quote(version)}/"
    return f"data/{folder}", f"datasets/{folder}"


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
    """Return the key of an attempt's manifest. `root` means that it lists the manifests of parts."""
    attempt_path = f"state={state}/gen={generation:06}/attempt={quote(attempt)}/"
    if part:
        attempt_path += f"part={quote(part)}/"
    return (
        lot_prefix(dataset, version, lot) + attempt_path + ("manifest-root.json" if root else "manifest.json")
    )


def projected_manifest_key(dataset: str, version: str, lot: str, state: ManifestState) -> str:
    """Return the key of a manifest's projection, which is written after the commit (LOT-23).

    The key does not contain an attempt.
    """
    return lot_prefix(dataset, version, lot) + f"state={state}/manifest.json"


def data_prefix(dataset: str, version: str, lot: str, attempt: str) -> str:
    """Return the folder for the data of one attempt; no other attempt writes there."""
    return f"data/name={quote(dataset)}/version={quote(version)}/lot={quote(lot)}/attempt={quote(attempt)}/"


def arc_key(project: str, version: str, arc: str, lot: str, state: str) -> str:
    """Return the key of the projection of an arc's state for a lot: an empty object (LOT-22)."""
    if state not in ARC_STATES:
        raise BadName(f"{state!r} is not a state of an arc", hint=f"use one of {', '.join(ARC_STATES)}")
    folder = f"arcs/project={quote(project)}/version={quote(version)}/arc={quote(arc)}/lot={quote(lot)}/"
    return f"{folder}{state}.arc"


def parse_key(key: str) -> dict[str, str]:
    """Parse the `name=value` segments of a key; `kind` is its first segment, `file` its last."""
    *folders, file = key.split("/")
    segments = {"kind": folders[0]} if folders else {}
    for folder in folders[1:]:
        name, _, value = folder.partition("=")
        segments[name] = unquoted(value)
    return segments | {"file": file}
