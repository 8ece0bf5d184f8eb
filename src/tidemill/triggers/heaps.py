"""Which heap a cluster has, if nobody says: in object storage where its data is, else in its store."""

from tidemill.events import Emit, ignore
from tidemill.objects import Objects
from tidemill.objects.remote import RemoteObjects
from tidemill.store import Store
from tidemill.triggers.heap import Heap
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.store_heap import StoreHeap


def usual_heap(store: Store, keys: TriggerKeys, objects: Objects | None, *, emit: Emit = ignore) -> Heap:
    """The heap in object storage for a cluster whose data lies in a bucket, the store's for one node."""
    if isinstance(objects, RemoteObjects):
        return ObjectHeap(objects, emit=emit)
    return StoreHeap(store, keys)
