"""Orphans: objects that nothing published leads to, for tests of what deaths leave behind."""

from collections.abc import Iterable

from tidemill.objects import Objects
from tidemill.publish.manifests import Manifests, attempt_in


def unlisted(
    objects: Objects, manifests: Manifests, roots: Iterable[str], live: Iterable[str] = ()
) -> list[str]:
    """Data that no manifest lists, and manifests of attempts that no lot leads to.

    Args:
        roots: the manifests of what is published; what they name is live with them.
        live: other keys that are live.
    """
    known = set(live)
    for key in roots:
        known |= {key, *manifests.load(key).parts, *(item.uri for item in manifests.lot_objects(key))}
    unknown = [info.key for info in objects.list("data/") if info.key not in known]
    unknown += [
        info.key
        for info in objects.list("datasets/")
        if info.key not in known and attempt_in(info.key) and "/state=removed/" not in info.key
    ]
    return unknown
