"""A real standalone cluster, of the Spark that pyspark brings, on this machine."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
from servers import free_port
from shell import wait_until

OURS = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
WORKERS, MEMORY = 2, "1g"


@dataclass
class Cluster:
    """A master, and workers of a core each."""

    folder: Path
    spark: Path = OURS
    port: int = field(default_factory=free_port)
    page: int = field(default_factory=free_port)
    _processes: list[subprocess.Popen] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, *wrapped_in: str) -> None:
        """Start the master and its workers, the last one inside another command."""
        self.start_master()
        for number in range(WORKERS):
            around = wrapped_in if number == WORKERS - 1 else ()
            self.add_worker(f"worker-{number}", *around)

    def start_master(self) -> None:
        ports = ("--port", str(self.port), "--webui-port", str(self.page))
        self._run("master", f"{DEPLOY}.master.Master", *ports)
        self._await("master", "I have been elected leader")

    def add_worker(self, name: str, *wrapped_in: str) -> None:
        size = ("--memory", MEMORY, "--cores", "1")
        options = (*size, "--work-dir", str(self.folder / name), "--webui-port", "0")
        main = f"{DEPLOY}.worker.Worker"
        self._run(name, main, *options, self.master, wrapped_in=wrapped_in)
        self._await(name, "Successfully registered with master")

    def kill_worker_of(self, task: int) -> None:
        """Kill the worker whose executor has a task in this process, and all of them."""
        for worker in self._processes[1:]:
            family = psutil.Process(worker.pid).children(recursive=True)
            if task in [process.pid for process in family]:
                for process in [psutil.Process(worker.pid), *family]:
                    with suppress(psutil.NoSuchProcess):  # it ended with its parent
                        process.kill()
                worker.wait()
                self._processes.remove(worker)
                return
        raise AssertionError("no worker has that task")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def _run(self, name: str, *command: str, wrapped_in: tuple[str, ...] = ()) -> None:
        main, *options = command
        here = ("--host", "127.0.0.1")
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        process = subprocess.Popen(
            [*wrapped_in, self.spark / "bin/spark-class", main, *here, *options],
            cwd=self.folder,
            env={**clean, "SPARK_HOME": str(self.spark), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=(self.folder / f"{name}.log").open("w"),
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)

    def _await(self, name: str, text: str) -> None:
        log = self.folder / f"{name}.log"
        process = self._processes[-1]
        wait_until(
            lambda: text in log.read_text() or process.poll() is not None,
            f"'{text}' of {name}",
        )
        assert process.poll() is None, log.read_text()


@contextmanager
def standalone(folder: Path, *wrapped_in: str, spark: Path = OURS) -> Iterator[Cluster]:
    """Run a master and two workers."""
    cluster = Cluster(folder, spark)
    try:
        cluster.start(*wrapped_in)
        yield cluster
    finally:
        cluster.stop()
