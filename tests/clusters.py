"""Real clusters on this machine: Spark's own, YARN, and who listens for Kubernetes."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError
from servers import free_port
from shell import fetch, wait_until

OURS = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
WORKERS, MEMORY = 2, "1g"
YARN = [  # beside the jars of Hadoop that pyspark brings
    "org.apache.hadoop:hadoop-client-minicluster:3.4.1",
    "junit:junit:4.13.2",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "org.glassfish.jaxb:jaxb-runtime:2.3.9",
]
YARN_SITE = {
    "yarn.is.minicluster": "true",
    "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server."
    "resourcemanager.scheduler.fifo.FifoScheduler",
    "yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}


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

    def applications(self) -> int:
        """How many runs the master has seen."""
        page = json.loads(fetch(f"http://127.0.0.1:{self.page}/json/"))
        return len(page["activeapps"]) + len(page["completedapps"])

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


@contextmanager
def yarn(folder: Path, jars: Path) -> Iterator[Path]:
    """Run a ResourceManager and a NodeManager; give the folder of their addresses."""
    with (folder / "log").open("w") as log:
        port, process = launch_gateway(
            classpath=f"{jars}/*:{OURS}/jars/*",
            javaopts=[
                "--add-opens=java.base/java.lang=ALL-UNNAMED",
                f"-Dtest.build.data={folder}",
                "-Xmx600m",
            ],
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            return_proc=True,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        hadoop: Any = gateway.jvm.org.apache.hadoop
        settings = hadoop.yarn.conf.YarnConfiguration()
        for key, value in YARN_SITE.items():
            settings.set(key, value)
        cluster = hadoop.yarn.server.MiniYARNCluster("yarn", 1, 1, 1)
        cluster.init(settings)
        cluster.start()
        conf = folder / "conf"
        conf.mkdir()
        file = gateway.jvm.java.io.FileOutputStream(str(conf / "yarn-site.xml"))
        cluster.getConfig().writeXml(file)
        file.close()
        yield conf
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        with suppress(Py4JError):
            gateway.shutdown()
        for one in [process, *family]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


class Kubernetes(ThreadingHTTPServer):
    """Takes what is created, as an API server does, and starts nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.created: dict[str, Any] = {}  # the newest in each place

    @property
    def master(self) -> str:
        return f"k8s://http://127.0.0.1:{self.server_port}"


class _Taker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Kubernetes

    def _take(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        made = json.loads(self.rfile.read(length) or "{}")
        if self.command == "POST":
            self.server.created[self.path.partition("?")[0]] = made
            made["metadata"]["uid"] = made["metadata"]["name"]
        answer = json.dumps(made).encode()
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing: what was created is looked at."""

    do_GET = do_POST = do_PATCH = do_PUT = _take


@contextmanager
def kubernetes() -> Iterator[Kubernetes]:
    """Listen for what Spark wants Kubernetes to create."""
    with Kubernetes() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
