"""A Kafka broker on loopback: one process in KRaft mode, from the jars that `make servers` fetches."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.jars import fetched
from tests.servers.process import Child, Server, ServerFailed, ServerUnavailable, free_ports, started
from tests.servers.spark import QUICK
from tidemill.errors import JavaMissing
from tidemill.spark.java import find_java
from tidemill.testing.threads import STUCK_S

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaServer(Server):
    """One broker, running inside of a `with`."""

    def __init__(self) -> None:
        self._jars = os.pathsep.join(map(str, fetched("kafka")))
        try:
            import confluent_kafka  # noqa: F401 - the import is the question

            self._java = find_java(os.environ)
        except (ImportError, JavaMissing) as reason:
            raise ServerUnavailable(str(reason)) from None
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-kafka-"))
        self._child: Child | None = None
        self._topics = 0
        self.port = 0

    def start(self) -> None:
        self._child = started(self._launch)

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it and remove its data."""
        if self._child is not None:
            self._child.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_topic(self, partitions: int) -> str:
        """Make a topic; returns its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        self._topics += 1
        name = f"topic-{self._topics}"
        admin = AdminClient({"bootstrap.servers": self.brokers})
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(STUCK_S)
        return name

    def send(self, topic: str, messages: list[tuple[int, bytes | None]]) -> None:
        """Messages for partitions of a topic; returns when they are there."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 5})
        for partition, value in messages:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        if producer.flush(30):
            raise ServerFailed("Kafka did not take all messages")

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete what is before an offset, as retention does."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.brokers})
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(STUCK_S)

    def _launch(self) -> Child:
        self.port, controller = free_ports(2)
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        properties = self._folder / "server.properties"
        text = _PROPERTIES.format(port=self.port, controller=controller, folder=self._folder)
        properties.write_text(text)
        form = self._command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties))
        done = subprocess.run(form, capture_output=True, check=False)
        if done.returncode:
            raise ServerFailed(
                f"Kafka's storage was not made: {done.stderr.decode(errors='replace')[-1000:]}"
            )
        broker = Child(
            self._command("kafka.Kafka", str(properties)), log=self._folder / "log", cwd=self._folder
        )
        try:
            broker.wait_until(self._answers)
        except ServerFailed:
            broker.end()
            raise
        return broker

    def _command(self, main: str, *arguments: str) -> list[str | Path]:
        return [self._java, "-Xmx256m", *QUICK.split(), "-cp", self._jars, main, *arguments]

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
            return len(admin.list_topics(timeout=1).brokers) == 1
        except KafkaException:
            return False
