"""The life of a window, as a table. Nothing else decides which state follows which.

A window is some files of a source that become one lot together. A file belongs to one window from the moment
it is taken, and a window is published once: so every file is in exactly one lot, whichever nodes list, work
and die.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class WindowState(StrEnum):
    """Listed until a node works on it; ended when its files are in a lot, or none of them was left."""

    LISTED = "listed"
    HELD = "held"
    FAILED = "failed"  # it waits, then it is tried again
    PUBLISHED = "published"
    DROPPED = "dropped"  # all its files changed or were gone before they were read


class WindowEdge(StrEnum):
    """What may happen to a window."""

    TAKE = "take"  # a node begins to work on it
    TAKE_OVER = "take_over"  # another node goes on: the one that held it is gone
    SHRINK = "shrink"  # files that changed are left out, to be taken again
    GIVE_BACK = "give_back"
    FAIL = "fail"
    PUBLISH = "publish"
    DROP = "drop"


WINDOW: dict[WindowState, dict[WindowEdge, WindowState]] = {
    WindowState.LISTED: {WindowEdge.TAKE: WindowState.HELD},
    WindowState.HELD: {
        WindowEdge.TAKE_OVER: WindowState.HELD,
        WindowEdge.SHRINK: WindowState.LISTED,
        WindowEdge.GIVE_BACK: WindowState.LISTED,
        WindowEdge.FAIL: WindowState.FAILED,
        WindowEdge.PUBLISH: WindowState.PUBLISHED,
        WindowEdge.DROP: WindowState.DROPPED,
    },
    WindowState.FAILED: {WindowEdge.TAKE: WindowState.HELD},
    WindowState.PUBLISHED: {},
    WindowState.DROPPED: {},
}


def step(state: WindowState, edge: WindowEdge) -> WindowState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return WINDOW[state][edge]
    except KeyError:
        raise IllegalTransition(f"a window that is {state.value} has no edge {edge.value!r}") from None
