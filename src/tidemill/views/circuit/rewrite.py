"""All rewrites in their order.
Each leaves the meaning alone, which the interpreter can prove of any query.
"""

from collections.abc import Callable, Mapping

from tidemill.views.circuit.functions import Functions
from tidemill.views.circuit.fuse import drop_distinct, fuse
from tidemill.views.circuit.operators import Output
from tidemill.views.circuit.prune import prune
from tidemill.views.circuit.pushdown import push_down

REWRITES: Mapping[str, Callable[[Output, Functions], Output]] = {
    "push down": push_down,
    "drop distinct": lambda output, _: drop_distinct(output),
    "prune": lambda output, _: prune(output),
    "fuse": fuse,
}


def rewrite(output: Output, functions: Functions | None = None) -> Output:
    """The view as it is run. Rewriting twice changes nothing more."""
    known = functions or Functions()
    for _ in range(10):
        before = output
        for one in REWRITES.values():
            output = one(output, known)
        if output == before:
            break
    return output
