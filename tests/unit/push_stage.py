"""A stage for what is pushed: a store, objects in memory, receivers and servers on loopback."""

import http.client
import io
import json
import random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.lots_stage import Stage
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster import nodes
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.errors import PushRefused
from tidemill.events import Event
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.objects.memory import MemoryObjects
from tidemill.publish.manifests import Manifests
from tidemill.scope import Scope
from tidemill.sources.keys import SourceKeys
from tidemill.sources.push_receiver import PushReceiver, ReceiverLimits
from tidemill.sources.push_server import PushEndpoint, PushServer
from tidemill.sources.source import SourceTarget
from tidemill.store import Store, Tx
from tidemill.testing.threads import STUCK_S

SOURCE = "source:shop/orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TOKEN = "a-token-that-is-long-enough"
LONG_US = 10**13


def convert(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows.cast(SCHEMA)
    strange = {name for row in rows for name in row} - set(SCHEMA.names)
    if strange:
        raise PushRefused(f"the column {min(strange)}")
    try:
        return pa.Table.from_pylist(rows, SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PushRefused(str(error)) from None


def address(tx: Tx, keys: SourceKeys, source: str) -> str | None:
    """Where the last node that received listens; None before the first."""
    raw = tx.get(keys.address[source])
    return None if raw is None else msgspec.msgpack.decode(raw, type=tuple[int, str])[1]


def table(*ids: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": number, "name": f"n{number}"} for number in ids], SCHEMA)


class PushStage:
    def __init__(self, store: Store | None = None, **declared: Any) -> None:
        self.stage = Stage(store, scan=False)
        self.store = self.stage.store
        self.objects = MemoryObjects(SYSTEM)
        self.keys = SourceKeys("c")
        self.chance = random.Random(3)
        self.told: list[Event] = []
        wanted = DatasetRow(**{"name": "orders", "schema": "id BIGINT, name STRING", **declared})
        self.dataset = self.store.run(lambda tx: datasets.declare(tx, self.keys.publish.lots, wanted))

    def node(self, name: str = "n") -> Node:
        return self.store.run(
            lambda tx: nodes.join(tx, self.keys.publish.cluster, Node(id=name, epoch=0), LONG_US)
        )

    def scope(self, node: Node, clock: Clock = SYSTEM) -> Scope:
        return Scope(
            store=self.store,
            cluster="c",
            objects=self.objects,
            node=node,
            clock=clock,
            chance=self.chance,
            emit=self.told.append,
        )

    def target(self, **options: Any) -> SourceTarget:
        return SourceTarget(
            pipeline="shop", dataset=self.dataset, schema=self.dataset.schema, where="here", **options
        )

    def keeper(self, name: str = "n", ttl_s: float = 3600) -> Keeper:
        return Keeper(self.store, name, clock=self.stage.clock, chance=self.chance, timing=LeaseTiming(ttl_s))

    def receiver(self, held: HeldLease | None = None, *, start: bool = True, **limits: Any) -> PushReceiver:
        name = f"n{self.chance.getrandbits(60)}"
        if held is None:
            got = self.keeper(name).acquire(self.keys.push_lease(f"{SOURCE} {name}"))
            assert isinstance(got, HeldLease)
            held = got
        receiver = PushReceiver(
            self.target(),
            self.scope(self.node(name)),
            fence=held.fence,
            limits=ReceiverLimits(**limits),
        )
        if start:
            receiver.start()
        return receiver

    def server(self, receiver: PushReceiver | None = None, **settings: Any) -> PushServer:
        receiver = receiver or self.receiver()
        return PushServer({"orders": PushEndpoint(receiver, convert)}, token=TOKEN, **settings)

    def rows(self) -> list[dict[str, Any]]:
        manifests = Manifests(self.objects, SYSTEM)
        records: list[dict[str, Any]] = []
        for row in sorted(self.stage.rows_of(self.dataset.id), key=lambda row: row.position):
            for item in manifests.lot_objects(row.manifest):
                records += pq.read_table(io.BytesIO(self.objects.get(item.uri)[0])).to_pylist()
        return records

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


def post(
    url: str,
    body: bytes,
    kind: str = "application/x-ndjson",
    *,
    path: str = "/orders",
    token: str = TOKEN,
    timeout_s: float = STUCK_S,
    **headers: str,
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout_s)
    try:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Authorization": f"Bearer {token}", "Content-Type": kind, **more}
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def lines(*ids: int) -> bytes:
    return b"".join(b'{"id":%d,"name":"n%d"}\n' % (number, number) for number in ids)
