"""A node that receives what is pushed, if it has the lease.

usage: python -m tests.integration.push_node STORE OBJECTS NAME

Tells {"url": …} each time it begins to receive. Ends when its input does.
"""

import json
import random
import sys
import threading

from tests import patience
from tests.unit.push_stage import SOURCE, TOKEN, convert
from tidemill.clock import SYSTEM
from tidemill.cluster import nodes
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.objects import open_objects
from tidemill.scope import Scope
from tidemill.sources.http_push import PushHost
from tidemill.sources.keys import SourceKeys
from tidemill.sources.push_receiver import PushReceiver
from tidemill.sources.push_server import PushEndpoint, PushServer
from tidemill.sources.source import SourceTarget
from tidemill.store import open_store

TTL_S = 2.0
ORDERS = DatasetRow(name="orders", schema="id BIGINT, name STRING")


def main(url: str, folder: str, name: str) -> None:
    chance = random.Random()
    keys = SourceKeys("c")
    objects = open_objects(folder, clock=SYSTEM)
    with open_store(url) as store:
        dataset = store.run(lambda tx: datasets.declare(tx, keys.publish.lots, ORDERS))
        node = store.run(lambda tx: nodes.join(tx, keys.publish.cluster, Node(id=name, epoch=0), 10**13))
        keeper = Keeper(store, name, clock=SYSTEM, chance=chance, timing=LeaseTiming(TTL_S))
        keeper.start()
        scope = Scope(store=store, cluster="c", objects=objects, node=node, chance=chance)
        target = SourceTarget(pipeline="shop", dataset=dataset, schema=dataset.schema, where="here")

        def make(held: HeldLease) -> PushServer:
            receiver = PushReceiver(target, scope, fence=held.fence)
            receiver.start()
            return PushServer({"orders": PushEndpoint(receiver, convert)}, token=TOKEN)

        host = PushHost(SOURCE, scope, keeper, make=make)
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        announced = None
        while not over.is_set():
            host.tick()
            if host.url != announced:
                announced = host.url
                sys.stdout.write(json.dumps({"url": announced}) + "\n")
                sys.stdout.flush()
            SYSTEM.wait(over, 0.1)
        host.close()
        keeper.stop()


if __name__ == "__main__":
    patience.lengthen_transactions()
    main(*sys.argv[1:])
