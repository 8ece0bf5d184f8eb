"""The states of a window, as a table. No other code decides which state follows which.

A window is a set of files of a source that become one lot together. As soon as a node takes a file, the file
belongs to one window, and a window is published once. So every file ends up in exactly one lot, no matter
which nodes list it, process it or die.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class WindowState(StrEnum):
    """The states of a window."""

    LISTED = "listed"  # it waits for a node
    HELD = "held"  # a node works on it
    FAILED = "failed"  # it could not be read; a node retries it later
    PUBLISHED = "published"  # its files are in a lot
    DROPPED = "dropped"  # all its files changed or disappeared before they were read


class WindowEdge(StrEnum):
    """What can happen to a window."""

    TAKE = "take"  # a node begins to work on it
    TAKE_OVER = "take_over"  # another node resumes the work of a dead one
    SHRINK = "shrink"  # files that changed leave the window, and are taken again later
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
    """Return the state after a transition; `IllegalTransition` if the table does not allow it."""
    try:
        return WINDOW[state][edge]
    except KeyError:
        raise IllegalTransition(f"a window in state {state.value} has no transition {edge.value!r}") from None
