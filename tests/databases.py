"""Real databases for the tests, on free ports of this machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest
from servers import DOWNLOADS, free_port, one_at_a_time
from shell import answers, ok, sh, wait_until

USER, PASSWORD = "clerk", "cold-as-ice-7"
NOBODY = "nobody"  # PostgreSQL refuses to run as root


class Postgres:
    """A cluster of its own, thrown away at the end."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._port = free_port()
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        self._do(
            "initdb",
            *("-D", folder / "data", "-U", USER, "-A", "scram-sha-256"),
            *(f"--pwfile={folder / 'password'}", "--no-sync", "-E", "UTF8"),
            "--locale=C",
        )
        self.start()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self._port}/postgres"

    @property
    def credentials(self) -> dict[str, str]:
        return {"url": self.url, "user": USER, "password": PASSWORD}

    def start(self) -> None:
        listens = f"-p {self._port} -c listen_addresses=127.0.0.1 -c fsync=off"
        sockets = f"-c unix_socket_directories={self._folder}"
        log = self._folder / "log"
        options = f"{listens} {sockets} -c deadlock_timeout=10s"
        self._control("start", "-w", "-l", log, "-o", options)

    def stop(self) -> None:
        """End it at once, as when the machine that it runs on restarts."""
        self._control("stop", "-m", "immediate")

    def connect(self) -> psycopg.Connection:
        given = {k: v for k, v in self.credentials.items() if k != "url"}
        return psycopg.connect(self.url.removeprefix("jdbc:"), **given)

    def do(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def _control(self, *arguments: Any) -> None:
        self._do("pg_ctl", "-D", self._folder / "data", *arguments)

    def _do(self, program: str, *arguments: Any) -> None:
        as_nobody = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
        prefix = as_nobody if os.geteuid() == 0 else []
        ok(*prefix, self._programs / program, *arguments, cwd=self._folder)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start PostgreSQL, if there is one on this machine."""
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (beside and beside[-1])
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian, Ubuntu: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, NOBODY)
    try:
        server = Postgres(Path(found).parent, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


# --- Cassandra ---------------------------------------------------------------

CASSANDRA = "5.0.9"
SETTINGS = """\
cluster_name: tests
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
commitlog_sync: periodic
commitlog_sync_period: 10s
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage}
native_transport_port: {native}
data_file_directories: ["{folder}/data"]
commitlog_directory: {folder}/commitlog
saved_caches_directory: {folder}/caches
hints_directory: {folder}/hints
cdc_raw_directory: {folder}/cdc
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage}"}}]
"""
# What Cassandra needs to see of Java's own modules, as its start script says.
EXPORTS = [
    "java.base/java.lang.ref",
    "java.base/java.lang.reflect",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
]
OPENS = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
]


PATIENCE = """datastax-java-driver {
  basic.request.timeout = 1 minute
  advanced.connection.init-query-timeout = 1 minute
}"""


class Cassandra:
    """A node of its own; a Spark with the connector's package talks to it."""

    def __init__(self, port: int, spark: Any) -> None:
        self.port = port
        self._spark = spark
        jvm = spark._jvm
        address = jvm.java.net.InetSocketAddress("127.0.0.1", port)
        core = jvm.com.datastax.oss.driver.api.core
        patience = core.config.DriverConfigLoader.fromString(PATIENCE)
        builder = core.CqlSession.builder().withConfigLoader(patience)
        builder = builder.addContactPoint(address)
        self._session = builder.withLocalDatacenter("datacenter1").build()

    def do(self, *statements: str) -> None:
        cql = self._spark._jvm.com.datastax.oss.driver.api.core.cql
        for statement in statements:
            asked = cql.SimpleStatement.newInstance(statement)
            self._session.execute(asked, cql.Statement.SYNC)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        keyspace, name = table.split(".")
        reader = self._spark.read.format("org.apache.spark.sql.cassandra").options(
            **{"keyspace": keyspace, "table": name},
            **{"spark.cassandra.connection.host": "127.0.0.1"},
            **{"spark.cassandra.connection.port": self.port},
        )
        return sorted(map(tuple, reader.load().select(*columns).collect()))

    def close(self) -> None:
        self._session.closeAsync().toCompletableFuture().join()


@contextmanager
def cassandra(folder: Path, spark: Any) -> Iterator[Cassandra]:
    """Start Cassandra, if its jars can be had."""
    jars = _cassandra_jars()
    native = free_port()
    settings = SETTINGS.format(storage=free_port(), native=native, folder=folder)
    (folder / "cassandra.yaml").write_text(settings)
    log = folder / "log"
    process = subprocess.Popen(
        [
            "java",
            *("-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dcassandra-foreground=yes"),
            *(f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS),
            "-Djdk.attach.allowAttachSelf=true",
            f"-Dcassandra.config=file://{folder}/cassandra.yaml",
            f"-Dcassandra.storagedir={folder}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ],
        cwd=folder,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        env={k: v for k, v in os.environ.items() if k != "JAVA_TOOL_OPTIONS"},
    )
    try:
        wait_until(lambda: answers(native) or process.poll() is not None, "Cassandra")
        assert process.poll() is None, log.read_text()[-4000:]
        node = Cassandra(native, spark)
        try:
            yield node
        finally:
            node.close()
    finally:
        process.terminate()
        process.wait()


def _cassandra_jars() -> Path:
    """Download Cassandra's jars by the Ivy that pyspark brings, once."""
    jars = DOWNLOADS / f"cassandra-{CASSANDRA}"
    with one_at_a_time():
        if not (jars / "complete").exists():
            (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
            done = sh(
                *("java", "-jar", ivy, "-cache", DOWNLOADS / "ivy-cassandra"),
                *("-dependency", "org.apache.cassandra", "cassandra-all", CASSANDRA),
                *("-confs", "default", "-retrieve"),
                f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
            )
            if not list(jars.glob(f"cassandra-all-{CASSANDRA}.jar")):
                pytest.skip(f"Cassandra's jars cannot be had: {done.stdout[-300:]}")
            (jars / "complete").touch()
    return jars
