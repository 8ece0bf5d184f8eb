"""Input trees: pass any number of futures to one call.

A future has a limited number of inputs, because one transaction writes them all (`submit.MOST_INPUTS`). If a
call has more, some of them are replaced by *bundles*. Such a bundle is an ordinary future: its inputs are a
few hundred of the call's futures, and its result is the tuple of their results. In the pickled arguments of
the call, each bundled future is replaced by a reference to its item in that tuple. Bundles can contain
bundles, so a call can have any number of inputs.

Because bundles are ordinary futures, all guarantees of futures hold for them too. They survive the client
that submits them. If an input fails or is cancelled, the bundle fails with the input's error, and so does the
call. If an input is requeued or its result is lost, the bundle and the call wait for it again. If the call
has an idempotency key, its bundles have keys too, so repeating the call creates nothing.

A bundle copies the results of its inputs. So no more inputs are bundled than necessary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidemill.futures.client.options import Options
from tidemill.futures.protocol import submit
from tidemill.futures.values.pickling import InputPlace, Places

MOST_DIRECT = submit.MOST_INPUTS - 1
"""How many futures a call can have without bundles. The call of an actor has the actor as another input."""

BUNDLE = 250
"""The maximum number of inputs of a bundle. With more, a page of submissions has room for no other future."""

RETRIES = 3


class Bundles(NamedTuple):
    """The places of a call's futures, and handles of the bundles.

    The caller keeps the handles until the call is stored. From then on, the call itself keeps the bundles.
    """

    places: Places
    handles: Sequence[object]


BundleCall = Callable[[Sequence[InputPlace], Options], Any]
"""Submits a call of `collect` with these inputs; returns the handle of the new future, which has an `id`."""


def collect(*values: Any) -> tuple[Any, ...]:
    """Return the results of a bundle's inputs. Stored futures refer to this function by its name."""
    return values


def bundle(inputs: Sequence[bytes], options: Options, key: str, submit_bundle: BundleCall) -> Bundles:
    """Submit bundles, level by level, until a call can have what remains as its inputs.

    Args:
        inputs: the futures among the arguments of the call.
        options: the options of the call; bundles have its priority, and are as durable as its result.
        key: the idempotency key of the call; empty if it has none.
        submit_bundle: submits one bundle.
    """
    places = {future_id: InputPlace(future_id) for future_id in inputs}
    level = list(places.values())
    handles: list[Any] = []
    while len(level) > MOST_DIRECT:
        needed = -(-(len(level) - MOST_DIRECT) // (BUNDLE - 1))
        bundled, level = level[: needed * BUNDLE], level[needed * BUNDLE :]
        above = []
        for first in range(0, len(bundled), BUNDLE):
            group = bundled[first : first + BUNDLE]
            handle = submit_bundle(
                group,
                Options(
                    priority=options.priority,
                    durable=options.durable,
                    max_retries=RETRIES,
                    key=f"{key}/inputs/{len(handles)}" if key else "",
                ),
            )
            handles.append(handle)
            parent = InputPlace(handle.id)
            for index, place in enumerate(group):
                place.parent, place.index = parent, index
            above.append(parent)
        level = above + level
    return Bundles(places, handles)
