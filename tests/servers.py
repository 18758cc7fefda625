"""Real servers for the tests, from Maven's jars, on free ports of this machine."""

import base64
import fcntl
import random
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyspark
import trustme
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from cryptography.hazmat.primitives import serialization
from shell import ROOT, fetch, ok, sh, wait_until

APICURIO = "3.0.9"
DOWNLOADS = ROOT / ".cache/servers"
USER, PASSWORD = "alice", "wonder-land-42"

REGISTRY_IVY = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="registry"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{APICURIO}"
                transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz"
                m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
WITHOUT_POMS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false"/>
  </resolvers>
</ivysettings>
"""
SECURE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=SASL_PLAINTEXT://127.0.0.1:{sasl},SSL://127.0.0.1:{ssl},SASL_SSL://127.0.0.1:{both},CONTROLLER://127.0.0.1:{control}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
inter.broker.listener.name=SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


_given: set[int] = set()


def free_port() -> int:
    """Return a port that nobody is given by chance before a server is there to take it."""
    while True:
        port = random.randint(15_000, 30_000)  # the system itself gives others away
        if port in _given:  # to a server that may not have taken it yet
            continue
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            _given.add(port)
            return port


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let only one of the processes that run tests download at a time."""
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    with (DOWNLOADS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Kafka:
    """The broker of ``kedro streams broker``, and a client to look into it."""

    def __init__(self, address: str, secrets: dict[str, str] | None = None) -> None:
        self.address = address
        self._client = {"bootstrap.servers": address, **(secrets or {})}
        self._admin = AdminClient(self._client)

    @property
    def options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address}

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic."""
        topic = NewTopic(name, partitions, 1, config=config)
        self._admin.create_topics([topic])[name].result(30)
        return name

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        grown = NewPartitions(name, partitions)
        self._admin.create_partitions([grown])[name].result(30)

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=30).topics)

    def partitions(self, name: str) -> int:
        return len(self._admin.list_topics(name, timeout=30).topics[name].partitions)

    def forget(self, name: str, before: int) -> None:
        """Delete messages of the first partition, as retention does."""
        oldest = TopicPartition(name, 0, before)
        self._admin.delete_records([oldest])[oldest].result(30)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def send(self, topic: str, *messages: bytes | tuple, partition: int = -1) -> None:
        """Send values, or keys with values, or both with headers."""
        producer = Producer(self._client)
        for message in messages:
            parts = message if isinstance(message, tuple) else (None, message)
            key, value, headers = (*parts, None)[:3]
            producer.produce(topic, value, key, partition, headers=headers)
        assert producer.flush(30) == 0

    def messages(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return the keys and values that a topic holds now."""
        return [(m.key(), m.value()) for m in self.raw_messages(topic)]

    def raw_messages(self, topic: str) -> list:
        consumer = Consumer(
            {
                **self._client,
                "group.id": "tests",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        partitions = range(self.partitions(topic))
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None, "the broker does not answer"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
            else:
                found.append(message)
        consumer.close()
        return found


@contextmanager
def broker_of(project, port: int) -> Iterator[tuple[Kafka, subprocess.Popen]]:
    """Run ``kedro streams broker`` in a project."""
    log = project.folder.parent / f"broker-{port}.log"
    with one_at_a_time():
        process = subprocess.Popen(
            project.command("streams", "broker", f"--port={port}"),
            cwd=project.folder,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )
        wait_until(
            lambda: "listens at" in log.read_text() or process.poll() is not None,
            "the broker",
        )
    assert process.poll() is None, log.read_text()
    try:
        yield Kafka(f"127.0.0.1:{port}"), process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@dataclass
class SecureKafka:
    """What a client needs to know of the secure broker."""

    folder: Path
    sasl: int
    ssl: int
    both: int

    def by_password(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        """Return the credentials of a user with a password."""
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        return {
            "kafka.bootstrap.servers": f"127.0.0.1:{self.sasl}",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security."
            f'{kind}LoginModule required username="{USER}" password="{password}";',
        }

    def by_certificate(self, authority: str = "ca.pem") -> dict[str, str]:
        """Return what it takes to trust the broker."""
        return {
            "kafka.bootstrap.servers": f"127.0.0.1:{self.ssl}",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": (self.folder / authority).read_text(),
        }

    def by_password_and_file(self) -> dict[str, str]:
        """Return the credentials that the project's README shows."""
        return {
            **self.by_password("SCRAM-SHA-256"),
            "kafka.bootstrap.servers": f"127.0.0.1:{self.both}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.folder / "ca.pem"),
        }

    def client(self) -> Kafka:
        """Look into the broker, with a password."""
        return Kafka(
            f"127.0.0.1:{self.sasl}",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            },
        )


@contextmanager
def secure_broker(jars: Path, folder: Path) -> Iterator[SecureKafka]:
    """Run a broker that wants a password, and one that shows a certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    chain = [pem.bytes() for pem in certificate.cert_chain_pems]
    key = _as_java_reads_it(certificate.private_key_pem.bytes())
    (folder / "server.pem").write_bytes(b"".join([key, *chain]))
    ports = {name: free_port() for name in ("sasl", "ssl", "both", "control")}
    file = folder / "server.properties"
    file.write_text(SECURE.format(folder=folder, user=USER, password=PASSWORD, **ports))
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
    ok(
        *java,
        *("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg"),
        *("-c", file, "--add-scram", scram),
    )
    log = folder / "broker.log"
    process = subprocess.Popen(
        [*java, "kafka.Kafka", str(file)],
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until(
            lambda: (
                "Kafka Server started" in log.read_text() or process.poll() is not None
            ),
            "the secure broker",
        )
        assert process.poll() is None, log.read_text()
        yield SecureKafka(folder, ports["sasl"], ports["ssl"], ports["both"])
    finally:
        process.kill()
        process.wait()


def _as_java_reads_it(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@contextmanager
def registry_server(folder: Path) -> Iterator[str]:
    """Run a schema registry; give the address that Confluent's clients understand."""
    app = _registry_app()
    port = free_port()
    log = folder / "registry.log"
    process = subprocess.Popen(
        [
            *("java", "-Xmx400m", "-Dquarkus.http.host=127.0.0.1"),
            *(f"-Dquarkus.http.port={port}", "-jar", str(app)),
        ],
        cwd=folder,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        wait_until(
            lambda: _answers(f"{url}/subjects") or process.poll(), "the registry"
        )
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        process.kill()
        process.wait()


@contextmanager
def guarded(
    url: str, user_info: str | None = None, asked: list[str] | None = None
) -> Iterator[str]:
    """Run a door in front of a registry, for all or for a user, and note who asks."""
    word = base64.b64encode((user_info or "").encode()).decode()
    wanted = f"Basic {word}" if user_info else None

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            if self.headers["Authorization"] != wanted:
                self.send_response(401)
                self.end_headers()
                return
            body = fetch(url + self.path).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _answers(url: str) -> bool:
    try:
        return bool(fetch(url))
    except OSError:
        return False


def _registry_app() -> Path:
    with one_at_a_time():
        folder = DOWNLOADS / f"apicurio-{APICURIO}"
        app = folder / f"apicurio-registry-app-{APICURIO}-runner.jar"
        if not app.exists():
            folder.mkdir(exist_ok=True)
            (folder / "ivy.xml").write_text(REGISTRY_IVY)
            (folder / "settings.xml").write_text(WITHOUT_POMS)
            tool = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
            sh(
                *("java", "-jar", tool, "-settings", folder / "settings.xml"),
                *("-ivy", folder / "ivy.xml", "-cache", folder / "cache"),
                *("-retrieve", f"{folder}/[artifact].[ext]"),
            )
            with tarfile.open(folder / "apicurio-registry-app.tar.gz") as archive:
                archive.extractall(folder, filter="data")
        return app
