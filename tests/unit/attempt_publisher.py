"""A publisher that also opens and adopts single attempts.

The product opens them together with the row of an arc's lot or of a source's window, in one transaction.
"""

from collections.abc import Sequence

from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.attempts import PARTS_PAGE, Draft, Hold, Open
from tidemill.publish.publisher import Publisher


class AttemptPublisher(Publisher):
    def open(self, draft: Draft) -> Hold:
        """Write the row of a new attempt."""
        return self._scope.step(
            "publish.open", lambda tx: attempts.begin(tx, self._keys, self._scope.node, draft)
        )

    def list_parts(self, hold: Hold, names: Sequence[str]) -> None:
        """Store the list of an attempt's parts, in pages."""
        for first in range(0, max(1, len(names)), PARTS_PAGE):
            page = names[first : first + PARTS_PAGE]
            last = first + len(page) == len(names)
            self._scope.step(
                "publish.parts",
                lambda tx, first=first, page=page, last=last: attempts.list_parts(  # type: ignore[misc]
                    tx, self._keys, hold, first, page, last=last
                ),
            )

    def adopt(self, expected: Open, inputs: Sequence[InputLot], code: str) -> Hold | None:
        """Continue an attempt that another node, or an earlier start of this one, left open."""
        return self._scope.step(
            "publish.adopt",
            lambda tx: attempts.adopt(tx, self._keys, self._scope.node, expected, inputs, code),
        )
