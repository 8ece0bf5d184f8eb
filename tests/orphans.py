"""Orphans: objects that nothing published leads to, for tests of what deaths leave behind."""

from collections.abc import Iterable

from tidemill.objects import Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import Open
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests, attempt_in
from tidemill.store import Store, Tx


def make_sweeps_due(store: Store, keys: PublishKeys) -> None:
    """Let a cleaner visit every ended attempt now that it would visit again later.

    A runner visits the attempts that have ended every half minute, and then again after a minute at the
    earliest. So without this, what a test finds of an attempt depends on how long its runs took.
    """

    def make_due(tx: Tx) -> None:
        for row in tx.range(*keys.sweep.all()):
            ended = attempts.read(tx, keys, str(keys.sweep.unpack(row.key)[1]))
            assert not isinstance(ended, Open)
            attempts.sweep_again(tx, keys, ended, tx.now())

    store.run(make_due)


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
