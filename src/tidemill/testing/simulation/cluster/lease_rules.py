"""Check how the row of a lease changes from one commit to the next (CLU-3, CLU-6, CLU-7)."""

from tidemill.cluster import leases
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Lease
from tidemill.testing.simulation.rules import Act, Rule, Violation
from tidemill.testing.simulation.store import Change, RecordedCommit


class LeaseRules(Rule):
    """One holder per epoch; epochs grow by one; only the holder renews and releases, and only in its time."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.prefixes = (keys.lease.prefix,)

    def commit(self, commit: RecordedCommit) -> None:
        for change in commit.changes:
            if change.key.startswith(self.prefixes):
                self._judge(commit, change)

    def _judge(self, commit: RecordedCommit, change: Change) -> None:
        name = "/".join(str(part) for part in self.keys.lease.unpack(change.key))
        if change.new is None:
            raise Violation(f"lease {name} was removed, and its epoch with it")
        old = leases.decode(change.old) if change.old is not None else Lease("", 0, 0)
        new = leases.decode(change.new)
        ours = commit.node.tokens if commit.node is not None else set()
        running = old.expires_at > commit.now_us
        if new.epoch == old.epoch:
            if new.holder != old.holder:
                raise Violation(f"lease {name} has two holders under epoch {new.epoch}")
            if old.holder not in ours:
                raise Violation(f"lease {name} epoch {old.epoch} was changed by one who does not hold it")
            if not running:
                raise Violation(f"lease {name} epoch {old.epoch} was changed after its expiry")
            if new.expires_at != 0 and new.expires_at < old.expires_at:
                raise Violation(f"lease {name} epoch {old.epoch} was shortened")
        elif new.epoch != old.epoch + 1:
            raise Violation(f"lease {name} went from epoch {old.epoch} to {new.epoch}")
        elif running:
            left_ms = (old.expires_at - commit.now_us) / 1000
            raise Violation(f"lease {name} epoch {old.epoch} was taken {left_ms:.1f} ms before its expiry")
        elif new.holder not in ours:
            raise Violation(f"lease {name} epoch {new.epoch} was acquired in another's name")

    def act(self, act: Act) -> None:
        """`History` judges acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Nothing is left to say."""
