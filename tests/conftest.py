"""Projects generated with real ``kedro new``, and clean environments to run them in."""

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import databases
import pexpect
import psutil
import pyspark
import pytest
import servers
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from shell import DEADLINE, ROOT, ok, sh, wait_until

BIN = Path(sys.executable).parent
BOUNDED = "--params=streams.until=caught_up"

SCHEMA = "sku STRING, units INT"
ROWS = [("A", 3), ("B", 5)]

# Short, long, and with a hyphen.
NAMES = ["Ox", "Refrigerated Goods Warehouse Monitoring And Forecasting", "cold-store"]


def is_alive(process: psutil.Process) -> bool:
    """Whether a process lives; one that waits to be buried does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class LiveRun:
    """A run that goes on while a test looks at it."""

    process: subprocess.Popen
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def family(self) -> list[psutil.Process]:
        """Every process the run has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def started(self, word: str) -> list[psutil.Process]:
        """Return the processes with a word in their command, once there are any."""
        found = []
        for process in self.family:
            with suppress(psutil.Error):  # it has ended meanwhile
                if any(word in argument for argument in process.cmdline()):
                    found.append(process)
        return found

    def jvm(self) -> list[psutil.Process]:
        return self.started("SparkSubmit")

    def says(self, text: str) -> None:
        """Wait until the run has logged something."""
        with suppress(AssertionError):
            wait_until(
                lambda: text in self.text or self.process.poll() is not None, text
            )
        assert text in self.text, self.text

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the run to end, and return its exit code."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for the run to end by itself, and return its exit code."""
        return self.process.wait(timeout=DEADLINE)

    def kill(self) -> None:
        """End everything that the run has started, Python's workers as well."""
        family = self.family
        os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:  # workers have a group of their own
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        wait_until(lambda: not any(map(is_alive, family)), "the end of the family")


@dataclass
class Project:
    """A generated project, and the Python that runs it."""

    folder: Path
    python: Path = Path(sys.executable)

    @property
    def package(self) -> str:
        return self.folder.name.replace("-", "_")

    def copy(self, folder: Path) -> "Project":
        """Return a fresh copy, whose sample files keep their age."""
        target = folder / self.folder.name
        shutil.copytree(self.folder, target)
        return Project(target, self.python)

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "kedro", *arguments]

    def kedro(self, *arguments: str, **kwargs):
        """Run a command of Kedro's to its end."""
        return sh(
            *self.command(*arguments), cwd=kwargs.pop("cwd", self.folder), **kwargs
        )

    def run(self, *arguments: str) -> str:
        """Run what is there, and expect success."""
        return ok(*self.command("run", BOUNDED, *arguments), cwd=self.folder)

    @contextmanager
    def live(
        self, *arguments: str, command: tuple[str, ...] = ("run",), **kwargs
    ) -> Iterator[LiveRun]:
        """Start a live run whose output goes to a file; leave none behind."""
        number = len(list(self.folder.parent.glob("live-*.log")))
        log = self.folder.parent / f"live-{number}.log"
        process = subprocess.Popen(
            self.command(*command, *arguments),
            cwd=self.folder,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **kwargs,
        )
        run = LiveRun(process, log)
        try:
            yield run
        finally:
            if process.poll() is None:
                run.kill()

    def edit(self, path: str, *changes: tuple[str, str]) -> None:
        """Change a file of the project, as a user would with an editor."""
        file = self.folder / path
        text = file.read_text()
        for old, new in changes:
            assert old in text, f"{old!r} is not in {path}"
            text = text.replace(old, new)
        file.write_text(text)

    def lines(self, pattern: str) -> list[str]:
        """Return the rows of CSV files, without their headings, sorted."""
        files = sorted(self.folder.glob(pattern))
        return sorted(line for f in files for line in f.read_text().splitlines()[1:])

    def newest(self, stream: str, log: str = "commits") -> int:
        """Return the newest batch in a log of a stream's checkpoint, -1 if none."""
        return newest_in(self.checkpoint(stream) / log)

    def checkpoint(self, stream: str) -> Path:
        return self.folder / "data/04_checkpoint" / stream

    def commits(self, stream: str) -> int:
        """Count the batches that a stream has committed."""
        return self.newest(stream) + 1

    def terminal(self, *arguments: str, **variables: str) -> pexpect.spawn:
        """Start a run in a terminal of 100 columns."""
        plain = ("COLUMNS", "NO_COLOR")
        clean = {k: v for k, v in os.environ.items() if k not in plain}
        return pexpect.spawn(
            str(BIN / "kedro"),
            ["run", *arguments],
            cwd=self.folder,
            dimensions=(40, 100),
            encoding="utf-8",
            env={**clean, "TERM": "xterm", **variables},
            timeout=DEADLINE,
        )


def newest_in(log: Path) -> int:
    """Return the newest batch in a log of a checkpoint, -1 if there is none."""
    return max((int(f.name) for f in log.glob("*") if f.name.isdigit()), default=-1)


def forget_newest_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a kill does that comes between a write and its commit."""
    commits = checkpoint / "commits"
    newest = newest_in(commits)
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


def new_project(folder: Path, name: str, kedro: Path = BIN / "kedro") -> Project:
    """Generate a project with the alias, as a user does."""
    ok(kedro, "new", "--starter=spark-streaming", f"--name={name}", cwd=folder)
    return Project(folder / name.lower().replace(" ", "-"))


def new_environment(folder: Path, *packages: object) -> Path:
    """Make a clean virtual environment with some packages; return its Python."""
    ok("uv", "venv", "-q", folder)
    python = folder / "bin" / "python"
    ok("uv", "pip", "install", "-q", "--python", python, *packages)
    return python


def run_in_process(project: Project, *pipelines: str, **selection: list[str]) -> None:
    """Run what is there, in this process and its session."""
    bootstrap_project(project.folder)
    until = {"streams": {"until": "caught_up"}}
    with KedroSession.create(project.folder, runtime_params=until) as session:
        session.run(pipeline_names=list(pipelines) or None, **selection)


@pytest.fixture(scope="session", autouse=True)
def quiet_environment(tmp_path_factory):
    """Keep telemetry, width and colours out of what is compared; start Java faster."""
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["KEDRO_DISABLE_TELEMETRY"] = "1"
    os.environ["COLUMNS"] = "200"
    os.environ["NO_COLOR"] = "1"
    archive = classes_of_a_run(tmp_path_factory.mktemp("classes"))
    if archive.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = (
            f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
        )


def classes_of_a_run(folder: Path) -> Path:
    """Let Java keep the classes that a run loads, for the hundreds of runs that follow.

    Loading them is half of what a short run costs. A Java that cannot keep them, or to
    which they do not belong, does without.
    """
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    java = sh("java", "-version").stderr
    mark = hashlib.sha256(f"{java}{core}{core.stat().st_mtime_ns}".encode())
    archive = servers.DOWNLOADS / f"classes-{mark.hexdigest()[:12]}.jsa"
    with servers.one_at_a_time():
        if not archive.exists():
            part = folder / "classes.jsa"
            project = new_project(folder, "Cold Store")
            options = (
                f"-XX:+IgnoreUnrecognizedVMOptions -XX:ArchiveClassesAtExit={part}"
            )
            environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
            with project.live(BOUNDED, env=environment) as run:
                wait_until(lambda: run.jvm() or run.process.poll() is not None, "Java")
                java_of_run = run.jvm()
                run.end()
            wait_until(lambda: not any(map(is_alive, java_of_run)), "the classes")
            if part.exists():
                shutil.move(part, archive)
    return archive


@pytest.fixture(scope="session", params=NAMES, ids=["short", "long", "hyphen"])
def generated(request, tmp_path_factory) -> Project:
    """A freshly generated project; look, do not touch."""
    return new_project(tmp_path_factory.mktemp("generated"), request.param)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Project:
    """The project that other tests copy."""
    return new_project(tmp_path_factory.mktemp("pristine"), "Cold Store")


@pytest.fixture
def project(pristine, tmp_path) -> Project:
    """A copy of the project to run, edit and break."""
    return pristine.copy(tmp_path)


@pytest.fixture(scope="session")
def code(pristine) -> SimpleNamespace:
    """The generated project's own modules, imported into this process."""
    sys.path.insert(0, str(pristine.folder / "src"))
    return SimpleNamespace(
        datasets=importlib.import_module("cold_store.extras.datasets"),
        session=importlib.import_module("cold_store.extras.streams.session"),
        installed=importlib.import_module("cold_store.extras.streams.installed"),
        cluster=importlib.import_module("cold_store.extras.streams.cluster"),
        errors=importlib.import_module("cold_store.extras.streams.errors"),
    )


@pytest.fixture(scope="session")
def spark(code, pristine, tmp_path_factory):
    """One session for all tests of this process, with the project's own packages."""
    text = (pristine.folder / "conf/base/spark.yml").read_text()
    packages = yaml.safe_load(text.replace("${cores:}", "2"))["packages"]
    packages["kafka"] = code.installed.spark_package("spark-sql-kafka-0-10")
    packages["avro"] = code.installed.spark_package("spark-avro")
    del packages["s3a"]  # half a gigabyte, which only runs of their own need
    lake = str(tmp_path_factory.mktemp("lake"))
    packages["iceberg"]["spark.sql.catalog.lake.warehouse"] = lake
    settings = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": False,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,"
        "org.apache.hadoop:hadoop-client-runtime",
        "packages": packages,
    }
    code.session.configure(settings, ROOT / ".cache")
    workers_find = {"PYTHONPATH": str(pristine.folder / "src")}
    # Two downloads into one folder would spoil it.
    with servers.one_at_a_time(), mock.patch.dict(os.environ, workers_find):
        session = code.session.get_spark(*packages)
    yield session
    session.stop()


@pytest.fixture
def dataset(code, spark):
    """Build a streaming dataset; Spark is there."""
    return code.datasets.SparkStreamingDataset


@pytest.fixture
def source(dataset, tmp_path):
    """A folder with one JSON file of two rows, as a stream."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"sku": sku, "units": units}) for sku, units in ROWS]
    (tmp_path / "in" / "1.json").write_text("\n".join(lines))
    return dataset(
        file_format="json",
        filepath=str(tmp_path / "in"),
        load_args={"schema": SCHEMA},
    )


@pytest.fixture
def arguments(tmp_path):
    """What a sink of files needs, and a trigger that lets it end."""
    return {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"}


def finish(dataset):
    """Wait for a stream that ends by itself."""
    assert dataset.query.awaitTermination(DEADLINE)
    assert dataset.query.exception() is None


@pytest.fixture(scope="session")
def kafka(pristine, tmp_path_factory):
    """The broker of the project's own command, shared by the tests of this process."""
    project = pristine.copy(tmp_path_factory.mktemp("broker"))
    with servers.broker_of(project, servers.free_port()) as (broker, _):
        yield broker


@pytest.fixture(scope="session")
def kafka_jars(kafka, tmp_path_factory) -> Path:
    """The jars that the broker runs from."""
    return next(tmp_path_factory.getbasetemp().glob("broker*/cold-store/.kafka/jars"))


@pytest.fixture(scope="session")
def secured(kafka_jars, tmp_path_factory) -> Iterator[servers.SecureKafka]:
    """A broker that wants a password at one port, and shows a certificate at another."""
    with servers.secure_broker(kafka_jars, tmp_path_factory.mktemp("secure")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """A real PostgreSQL, shared by the tests of this process."""
    with databases.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def cassandra(spark, tmp_path_factory) -> Iterator[databases.Cassandra]:
    """A real Cassandra, shared by the tests of this process."""
    with databases.cassandra(tmp_path_factory.mktemp("cassandra"), spark) as node:
        yield node
