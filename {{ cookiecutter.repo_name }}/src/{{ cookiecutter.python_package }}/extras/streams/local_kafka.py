"""A broker on this machine, for trying things out without a server."""

import base64
import json
import logging
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StreamsError
from .installed import check_java
from .jars import download, last_lines
from .signals import StopRequest
from .topology import Topology

try:
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError:
    AdminClient = None  # type: ignore[assignment,misc]

logger = logging.getLogger(__name__)

KAFKA = "3.9.2"
PACKAGES = [  # the second one makes the broker say why it fails
    f"org.apache.kafka:kafka_2.13:{KAFKA}",
    "org.slf4j:slf4j-simple:1.7.36",
]
START = 60.0  # seconds that a broker may take to start
STOP = 20.0  # seconds that it may take to stop
MEMORY = ["-Xmx512m", "-XX:TieredStopAtLevel=1"]
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


class Broker:
    """A Kafka of one node on this machine, in a folder of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self.log = folder / "broker.log"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen]:
        """Start the broker, and stop it in the end; its messages stay."""
        self._refuse_what_cannot_work()
        self._fetch()
        self._format()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for us, who then stop it
            )
        try:
            self._await(process)
            yield process
        finally:
            _stop(process)

    def create(self, topics: list[str]) -> None:
        """Make the topics that are not there yet."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 3})
        missing = sorted(set(topics) - admin.list_topics(timeout=10).topics.keys())
        if missing:
            made = admin.create_topics([NewTopic(t, 2, 1) for t in missing])
            for future in made.values():
                future.result()

    def _refuse_what_cannot_work(self) -> None:
        if AdminClient is None:
            raise StreamsError(
                "the broker needs a package that is not installed; type pip install "
                '-e ".[kafka]"'
            )
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", self._port)) == 0:
                raise StreamsError(
                    f"something listens at {self.address} already, perhaps another "
                    "broker; use that one, or stop it, or choose another --port"
                )

    def _fetch(self) -> None:
        """Download Kafka with the tool that Spark downloads its packages with."""
        jars = self._folder / "jars"
        if (jars / f"kafka_2.13-{KAFKA}.jar").exists():
            return
        logger.info("Downloading Kafka %s (46 MB), once ...", KAFKA)
        download(PACKAGES, jars, excludes=[])

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _format(self) -> None:
        """Prepare the folder for messages, unless it holds some already."""
        data = self._folder / "data"
        place = json.dumps(str(data))[1:-1]  # Java reads ASCII, and escapes as in JSON
        text = PROPERTIES.format(port=self._port, control=_free_port(), data=place)
        self._properties.write_text(text)
        if not (data / "meta.properties").exists():
            cluster = f"--cluster-id={_cluster_id()}"  # which may begin with a dash
            format_ = ["format", cluster, "-c", str(self._properties)]
            command = self._java("kafka.tools.StorageTool", *format_)
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=_environment(),
            )
            if done.returncode:
                raise StreamsError(
                    f"Kafka cannot use {data}: {last_lines(done.stdout + done.stderr)}"
                )

    def _java(self, main: str, *arguments: str) -> list[str]:
        jars = f"{self._folder}/jars/*"
        return [check_java(), *MEMORY, "-cp", jars, main, *arguments]

    def _await(self, process: subprocess.Popen) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            if "Kafka Server started" in self.log.read_text(errors="replace"):
                return
            time.sleep(0.1)
        raise StreamsError(
            f"the broker did not start; {self.log} says why: "
            f"{last_lines(self.log.read_text(errors='replace'))}"
        )


def run_broker(
    folder: Path, address: str, topics: list[str], say: Callable[[str], None]
) -> None:
    """Run a broker until Ctrl-C or SIGTERM."""
    broker = Broker(folder, int(address.rpartition(":")[2]))
    stop = StopRequest()
    stop.listen()
    try:
        with broker.running() as process:
            broker.create(topics)
            say(f"Kafka {KAFKA} listens at {broker.address}; Ctrl-C stops it.")
            say(f"Topics: {', '.join(topics)}. Messages stay in {folder}.")
            while not stop.count and process.poll() is None:
                time.sleep(0.1)
        if not stop.count:
            raise StreamsError(f"the broker has ended by itself; see {broker.log}")
        say("Kafka has stopped.")
    finally:
        stop.restore()


def topics_of(topology: Topology) -> list[str]:
    """Return the topics that the entries of a catalog name."""
    entries = topology.kafka_entries.values()
    return sorted({topic for entry in entries for topic in entry.topics})


def address_of(topology: Topology, port: int | None) -> str:
    """Return where the entries of a catalog expect a broker, if it is this machine."""
    if port:
        return f"127.0.0.1:{port}"
    entries = topology.kafka_entries.values()
    servers = {e.connection.get("kafka.bootstrap.servers") for e in entries}
    host, _, number = str(next(iter(servers), "127.0.0.1:9092")).rpartition(":")
    if len(servers) > 1 or host not in ("127.0.0.1", "localhost"):
        raise StreamsError(
            f"the catalog expects a broker at {' and '.join(map(str, servers))}, and one "
            "can only be started on this machine; write 127.0.0.1:9092 there, or say "
            "--port 9092"
        )
    return f"127.0.0.1:{number}"


def _stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Let Java understand paths with letters of any language, whatever ours is."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _cluster_id() -> str:
    """Name the cluster as Kafka does: 16 random bytes in 22 letters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
