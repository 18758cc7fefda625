"""Runs of the generated project on a real S3 server."""

import re
import shutil
import socket
import time
from contextlib import ExitStack

import pytest
import yaml
from conftest import Project, wait_until
from object_store import BUCKET, SECRET, Proxy, object_store, stock_in
from servers import free_port
from test_runs import (
    expected_averages,
    expected_deliveries,
    expected_stock,
    without_processing_time,
)

S3 = "--env=s3"
OUTAGE = 30  # seconds, of which the stream waits out the last
SAMPLES = "data/01_raw/stream/inventory"
PATIENT = [
    ("attempts: 3", "attempts: 20"),
    ("backoff: 5 seconds", "backoff: 0.1 seconds"),
]
# What a batch writes, one after the other: a log is put down and then moved into place.
WRITES = [
    ("PUT", "/offsets/"),
    ("COPY", "/offsets/"),
    ("PUT", "/part-"),
    ("PUT", "/_spark_metadata/"),
    ("COPY", "/_spark_metadata/"),
    ("PUT", "/commits/"),
    ("COPY", "/commits/"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A real S3 server, shared by the tests here."""
    with object_store(tmp_path_factory.mktemp("s3")) as proxy:
        yield proxy


@pytest.fixture
def place(project, store, tmp_path) -> str:
    """The project with its data in a folder of the bucket; the folder."""
    folder = tmp_path.name
    project.edit(
        "conf/s3/globals.yml", ("s3a://my-bucket/", f"s3a://{BUCKET}/{folder}/")
    )
    project.edit("conf/s3/catalog.yml", ("trigger: 1 minute", "trigger: 1 second"))
    credentials(project, store)
    store.fault = lambda kind, path: None
    return f"{folder}/cold-store"


def credentials(project: Project, store: Proxy, **other: object) -> None:
    given = {"s3": {**store.credentials, **other}}
    (project.folder / "conf/s3/credentials.yml").write_text(yaml.safe_dump(given))


def deliver(
    project: Project,
    store: Proxy,
    place: str,
    number: int = 0,
    files: str = "*.json",
) -> None:
    """Put the sample deliveries into the bucket."""
    for file in (project.folder / SAMPLES).glob(files):
        store.put(f"{place}/01_raw/inventory/{number}_{file.name}", file.read_text())


def test_a_bucket_gives_the_rows_that_files_give(project, store, place):
    """Files, a table of Delta, and, for what is malformed, one of Iceberg."""
    project.edit(
        "conf/s3/catalog.yml",
        ("file_format: parquet", "file_format: iceberg"),
        ("filepath: ${globals:bucket}/02_intermediate/malformed", "table: lake.a.b"),
    )
    fed = project.kedro("streams", "feed", S3, "--rate=1000")
    assert fed.returncode == 0, fed.stdout + fed.stderr

    broken = "sensor_id,value,read_at\ndock,#ERR,line dropped\n"
    store.put(f"{place}/01_raw/sensor/broken.csv", broken)
    text = project.run(S3)

    assert stock_in(store, place) == expected_stock(project)
    deliveries = store.committed(f"{place}/02_intermediate/inventory")
    assert without_processing_time(deliveries) == expected_deliveries(project)
    # How many rows are a batch is another matter here, and so which readings are late.
    windows = [
        {line.rsplit(",", 2)[0] for line in lines}
        for lines in (
            store.committed(f"{place}/03_primary/sensor"),
            expected_averages(project),
        )
    ]
    assert windows[0] == windows[1]
    (kept,) = store.parquet_rows(f"{place}/03_primary/lake/a/b/data")
    assert kept["value"] == "dock,#ERR,line dropped"
    status = project.kedro("streams", "status", S3)
    assert "int.new_inventory: stopped" in status.stdout, status.stdout + status.stderr
    log = (project.folder / "logs/spark.log").read_text()
    assert SECRET not in text + status.stdout + log


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"fs.s3a.secret.key": "not-the-key"}, "the store refuses the keys"),
        ({"fs.s3a.endpoint": "http://127.0.0.1:PORT"}, "does not answer"),
        ("silent", "does not answer (not a word in 15 seconds)"),
        ("full", "does not answer (not a word in 15 seconds)"),
        ("bucket", "there is no bucket nowhere"),
    ],
    ids=["key", "endpoint", "silent", "full", "bucket"],
)
def test_what_the_store_refuses_is_one_sentence_before_any_stream_starts(
    project, store, place, wrong, sentence, sockets
):
    if wrong == "bucket":
        project.edit("conf/s3/globals.yml", (f"s3a://{BUCKET}/", "s3a://nowhere/"))
    elif wrong in ("silent", "full"):
        port = nobody_answers(sockets, callers=0 if wrong == "silent" else 8)
        credentials(project, store, **{"fs.s3a.endpoint": f"http://127.0.0.1:{port}"})
    else:
        port = str(free_port())
        credentials(
            project, store, **{k: v.replace("PORT", port) for k, v in wrong.items()}
        )

    run = project.kedro("run", S3)

    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 1
    assert sentence in said and "Traceback" not in said
    assert SECRET not in said and "not-the-key" not in said


@pytest.fixture
def sockets():
    """What is closed at the end of a test."""
    with ExitStack() as opened:
        yield opened


def nobody_answers(sockets: ExitStack, callers: int) -> int:
    """Listen, and say nothing; more callers than fit are not even let in."""
    listener = sockets.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(callers):
        caller = sockets.enter_context(socket.socket())
        caller.setblocking(False)
        caller.connect_ex(listener.getsockname())
    return listener.getsockname()[1]


@pytest.mark.parametrize("command", ["status", "reset int.new_inventory", "feed"])
def test_other_commands_say_it_in_a_sentence_as_well(project, store, place, command):
    credentials(project, store, **{"fs.s3a.secret.key": "not-the-key"})

    told = project.kedro("streams", *command.split(), S3)

    said = " ".join((told.stdout + told.stderr).split())
    assert told.returncode == 1
    assert "the store refuses the keys" in said and "Traceback" not in said


def test_missing_credentials_are_one_sentence(project, place):
    (project.folder / "conf/s3/credentials.yml").unlink()

    run = project.kedro("run", S3)

    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 1
    assert (
        "spark.yml names the credentials 's3', which are not there; add s3: to" in said
    )


def test_an_outage_in_the_middle_of_a_run_costs_no_row(project, store, place):
    deliver(project, store, place)
    with project.live(S3, "--pipelines=inventory") as run:
        run.says("processed.stock: batch")
        begun = len(store.calls)
        deliver(project, store, place, 1)
        wait_until(
            lambda: any(
                kind == "PUT" and "int_new_inventory/offsets/" in path
                for kind, path in store.calls[begun:]
            ),
            "the beginning of another batch",
        )
        store.is_down = True
        back = time.monotonic() + OUTAGE
        try:
            run.says("failed, restart 3 of 3")
            wait_until(lambda: time.monotonic() > back, "the end of the outage")
        finally:
            store.is_down = False
        twice = sorted(expected_deliveries(project) * 2)
        wait_until(
            lambda: (
                without_processing_time(
                    store.committed(f"{place}/02_intermediate/inventory")
                )
                == twice
            ),
            "all deliveries",
        )
        for file in (project.folder / SAMPLES).glob("*.json"):
            shutil.copy(file, file.with_name(f"more_{file.name}"))
        wait_until(
            lambda: stock_in(store, place) == expected_stock(project), "the stock"
        )
        assert run.stop() == 0, run.text


def await_restart(run, stream: str = "int.new_inventory") -> None:
    """Wait until the stream has failed once more."""
    said = f"{stream} failed, restart"
    before = run.text.count(said)
    wait_until(lambda: run.text.count(said) > before, said)


def test_state_that_was_written_before_a_failed_commit_is_not_added_to(
    project, store, place
):
    project.edit("conf/base/parameters.yml", *PATIENT)
    deliver(project, store, place)
    refused: list[str] = []
    hit: set[str] = set()

    def fault(kind: str, path: str) -> int | None:
        found = {part for part in refused if part in path}
        if kind != "PUT" or "processed_stock" not in path or not found:
            return None
        hit.update(found)
        return 412

    store.fault = fault
    with project.live(S3, "--pipelines=inventory") as run:
        run.says("processed.stock: batch")
        for file in (project.folder / SAMPLES).glob("*.json"):
            shutil.copy(file, file.with_name(f"more_{file.name}"))
        refused.append("/state/")
        deliver(project, store, place, 1, "more_*.json")
        for part in ("/state/", "/commits/"):
            refused[:] = [part]
            wait_until(lambda p=part: p in hit, f"a write to {part} that is refused")
            await_restart(run, "processed.stock")
        refused.clear()
        run.says("processed.stock: batch 1")
        wait_until(
            lambda: stock_in(store, place) == expected_stock(project), "the stock"
        )
        assert run.stop() == 0, run.text

    assert stock_in(store, place) == expected_stock(project)


def keep_checkpoints_on_disk(project: Project) -> None:
    """Choose the documented variant for a disk that all machines share."""
    bucket = (project.folder / "conf/s3/globals.yml").read_text().splitlines()[-1]
    project.edit(
        "conf/s3/globals.yml", (bucket, f"checkpoints: {project.checkpoint('')}")
    )


@pytest.mark.parametrize(
    ("status", "on_disk"), [(500, False), (503, False), (412, False), (412, True)]
)
def test_answers_that_fail_lose_nothing_and_double_nothing(
    project, store, place, status, on_disk
):
    """Wherever a stream writes, the store refuses until the stream is restarted.

    Its second batch is hit, which also compacts the log of its files.
    """
    writes = WRITES
    if on_disk:
        keep_checkpoints_on_disk(project)
        writes = [w for w in WRITES if "offsets" not in w[1] and "commits" not in w[1]]
    compacts = "spark.sql.streaming.fileSink.log.compactInterval: 2"
    project.edit(
        "conf/base/spark.yml",
        ("throttle.limit: 7", "throttle.limit: 3"),
        ("spark.ui.port: 0", f"spark.ui.port: 0\n{compacts}"),
    )
    project.edit("conf/base/parameters.yml", *PATIENT)
    deliver(project, store, place, files="*_01.json")
    watched = ("04_checkpoint/int_new_inventory/", "02_intermediate/inventory/")
    watched += ("03_primary/stock/",)
    refused: list[tuple[str, str]] = []
    hit = refuse(store, status, refused, [f"{place}/{folder}" for folder in watched])
    table = ("PUT", "/_delta_log/")
    with project.live(S3, "--pipelines=inventory") as run:
        run.says("processed.stock: batch 0")
        refused[:] = [writes[0], table]
        deliver(project, store, place, files="*_0[23].json")
        await_restart(run)
        for write in writes[1:]:
            refused[:] = [write, table]
            await_restart(run)
        refused[:] = [table]
        run.says("processed.stock failed, restart")
        refused.clear()
        run.says("int.new_inventory: batch 1")
        run.says("processed.stock: batch 1")
        assert run.stop() == 0, run.text
    project.run(S3, "--pipelines=inventory")

    assert hit == {*writes, table}
    assert any("_spark_metadata/1.compact" in path for _, path in store.calls)
    assert (project.newest("int_new_inventory") > 0) == on_disk
    deliveries = store.committed(f"{place}/02_intermediate/inventory")
    assert without_processing_time(deliveries) == expected_deliveries(project)
    assert stock_in(store, place) == expected_stock(project)


def refuse(
    store: Proxy, status: int, refused: list[tuple[str, str]], places: list[str]
) -> set[tuple[str, str]]:
    """Let a store refuse some kinds of writes in some places; return what was hit."""
    hit: set[tuple[str, str]] = set()

    def fault(kind: str, path: str) -> int | None:
        if not any(place in path for place in places):
            return None
        found = [(k, part) for k, part in refused if kind == k and part in path]
        hit.update(found)
        return status if found else None

    store.fault = fault
    return hit


WRITER = """
def write(batch, batch_id, folder):
    batch.write.mode("overwrite").parquet(f"{folder}/{batch_id}")
"""


@pytest.mark.parametrize("committer", ["usual", "directory"])
def test_batches_of_files_are_whole_after_a_write_that_failed(
    project, store, place, committer
):
    if committer == "directory":
        page = (project.folder / "docs/cookbook.md").read_text()
        block = re.search(r"```\n(packages:\n  s3a:.*?)```", page, re.DOTALL)[1]
        settings = project.folder / "conf/s3/spark.yml"
        settings.write_text(settings.read_text() + block)
    (project.folder / "src/cold_store/writers.py").write_text(WRITER)
    catalog = project.folder / "conf/s3/catalog.yml"
    entries = yaml.safe_load(catalog.read_text())
    saved = entries["int.new_inventory"]["save_args"]
    entries["int.new_inventory"] = {
        "type": "cold_store.extras.datasets.MicroBatchDataset",
        "function": "cold_store.writers.write",
        "arguments": {"folder": "${globals:bucket}/delivered"},
        "save_args": {key: saved[key] for key in ("checkpoint", "trigger")},
    }
    catalog.write_text(yaml.safe_dump(entries))
    project.edit("conf/base/parameters.yml", *PATIENT)
    deliver(project, store, place, files="*_01.json")
    refused: list[tuple[str, str]] = []
    hit = refuse(store, 412, refused, [f"{place}/delivered/"])
    # A file goes up and is moved, or goes up in parts that make a file at the end.
    writes = {
        "usual": [("PUT", "/part-"), ("COPY", "/part-")],
        "directory": [("PUT", "/part-"), ("POST", "uploadId=")],
    }[committer]

    def delivered() -> list[tuple[str, int]]:
        batches = [name for name in store.names(f"{place}/delivered") if name.isdigit()]
        folders = [f"{place}/delivered/{number}" for number in batches]
        rows = [row for folder in folders for row in store.parquet_rows(folder)]
        return sorted((row["sku"], row["new_stock"]) for row in rows)

    lines = [line.split(",") for line in expected_deliveries(project)]
    expected = sorted((sku, int(units)) for sku, units, *_ in lines)
    with project.live(S3, "--to-nodes=stamp_processing_time") as run:
        run.says("int.new_inventory: batch 0")
        refused[:] = writes[:1]
        deliver(project, store, place, files="*_0[23].json")
        await_restart(run)
        refused[:] = writes[1:]
        await_restart(run)
        refused.clear()
        wait_until(lambda: delivered() == expected, "all deliveries")
        assert run.stop() == 0, run.text

    assert hit == {*writes}
    assert delivered() == expected
