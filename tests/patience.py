"""Limits of transactions that outlast any pause of the machine, like the leases of `tests.leases`.

A test that the machine does not let run for two seconds must not fail as a function that lingers would. Nor
must a process that a test stops for a while. On clocks that tests move, the limit is the real one.
"""

import msgspec

from tidemill.clock import SystemClock
from tidemill.store.port import LIMITS, Limits, Tx


class PatientLimits:
    """The limits of a transaction, which may take long on the machine's clock."""

    _patient = msgspec.structs.replace(LIMITS, transaction_s=3600.0)

    def __get__(self, tx: Tx | None, owner: type[Tx]) -> Limits:
        return (
            self._patient
            if tx is not None and isinstance(getattr(tx, "_clock", None), SystemClock)
            else LIMITS
        )


def lengthen_transactions() -> None:
    """Let transactions of this process take as long as they need."""
    Tx.limits = PatientLimits()  # type: ignore[assignment]
