"""How streams live, piece by piece: errors, settings, locks, checkpoints, the table."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from kedro.io import DatasetError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from rich.console import Console


@pytest.fixture(scope="module")
def streams(code):
    """The modules of extras/streams."""
    from cold_store.extras.streams import (
        checkpoints,
        checks,
        errors,
        files,
        locks,
        progress,
        reports,
        settings,
        signals,
        warnings,
    )

    return SimpleNamespace(
        checkpoints=checkpoints,
        checks=checks,
        errors=errors,
        files=files,
        locks=locks,
        progress=progress,
        reports=reports,
        settings=settings,
        signals=signals,
        warnings=warnings,
    )


# --- what a retry can mend ---------------------------------------------------


class SparkError(PySparkException):
    """An error as PySpark hands it over: with Java's stack trace as a text."""

    def __init__(self, trace: str) -> None:
        super().__init__(message=trace)
        self._stackTrace = trace


@pytest.mark.parametrize(
    "trace",
    [
        "org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] ...",
        "org.apache.spark.SparkException: Job aborted\n\tat x.Y.z(Y.scala:1)\n"
        "Caused by: org.apache.spark.api.python.PythonException: Traceback ...",
        "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] ...",
        "java.lang.IllegalArgumentException: Wrong basePath",
        "java.lang.AssertionError: assertion failed: There are [1] sources",
        "org.apache.spark.sql.execution.streaming.state"
        ".StateStoreKeySchemaNotCompatible: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE]",
    ],
)
def test_what_a_retry_cannot_mend_is_final(streams, trace):
    assert streams.errors.is_final(SparkError(trace))


@pytest.mark.parametrize(
    "trace",
    [
        "java.io.IOException: No space left on device",
        "java.io.FileNotFoundException: File file:/x does not exist",
        "org.apache.spark.SparkException: Job aborted\n\tat x.Y.z(Y.scala:1)\n"
        "Caused by: java.io.EOFException",
        "org.apache.kafka.common.errors.TimeoutException: Timed out",
        "java.io.IOException: a file named AnalysisException cannot be read",
    ],
)
def test_what_a_retry_may_mend_is_not(streams, trace):
    assert not streams.errors.is_final(SparkError(trace))


class OutOfStock(Exception):
    """What somebody's own code raises."""

    __module__ = "cold_store.pipelines.orders"


class ReadError(Exception):
    """What a library raises that gives its errors other names."""


class OperationalError(Exception):
    """What PEP 249 lets libraries raise when a database does not answer."""


class ConnectError(Exception):
    """What other libraries raise then."""


def worker_error(text: str) -> SparkError:
    """An error in a Python worker, as Spark hands it over."""
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1\n{text}\n'
    return SparkError(f"org.apache.spark.api.python.PythonException: {trace}")


def test_a_mistake_in_python_is_final_and_a_broken_connection_is_not(streams):
    wrapped = DatasetError("saving failed")
    wrapped.__cause__ = KeyError("sku")
    passing = DatasetError("saving failed")
    passing.__cause__ = OutOfStock("a dataset of somebody else's")

    mistake = worker_error("OutOfStock: Connection 7")
    for error in (wrapped, OutOfStock("Timeout"), RuntimeError(), mistake):
        assert streams.errors.is_final(error), repr(error)
    for error in (
        None,
        passing,
        ConnectionResetError("by peer"),
        OperationalError("the server is going down"),
        ConnectError("nobody answers"),
        ReadError("the answer was cut"),
        worker_error("psycopg.errors.AdminShutdown: terminating connection"),
        worker_error("httpx.ReadTimeout: The read operation timed out"),
        worker_error("ConnectionRefusedError: [Errno 111] Connection refused"),
    ):
        assert not streams.errors.is_final(error), repr(error)


def test_state_that_other_code_has_kept_is_to_be_reset(streams):
    error = RuntimeError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] The value differs.")

    assert streams.errors.first_sentence(error).endswith(
        "differs. The checkpoint was made by other code, which kept something else; "
        "undo the change, or start over: kedro streams reset NAME"
    )


def test_a_reason_is_what_failed_and_not_in_which_task(streams):
    error = RuntimeError(
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most "
        "recent failure: Lost task 0.0 in stage 3.0 (TID 3) (localhost executor "
        "driver): org.apache.kafka.common.errors.RecordTooLargeException: 1 MB\n\tat x"
    )

    reason = streams.errors.first_sentence(error)

    assert reason == "org.apache.kafka.common.errors.RecordTooLargeException: 1 MB"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Job failed: [USER_RAISED_EXCEPTION] key sku is null SQLSTATE: P0001",
            "key sku is null",
        ),
        (
            "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update.",
            "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update. A stream can "
            "only follow a table to which rows are added: read what its writer reads, "
            "or, by an entry with streaming: false, the table as it is",
        ),
        (
            "[REQUIRES_SINGLE_PART_NAMESPACE] `lake`.`shop`",
            "[REQUIRES_SINGLE_PART_NAMESPACE] `lake`.`shop`: a name with several dots "
            "begins with a catalog, and that of lake has tables of Iceberg; write "
            "file_format: iceberg, or a name with at most a schema before it",
        ),
        (
            "No suitable driver",
            "No suitable driver; name its class, for a SparkJDBCDataset under "
            "save_args, e.g. properties: {driver: org.postgresql.Driver}",
        ),
    ],
)
def test_a_reason_says_what_to_do(streams, said, reason):
    assert streams.errors.first_sentence(RuntimeError(said)) == reason


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "answer"),
    [
        ({"restart": {"attempts": "many"}}, "streams.restart.attempts is 'many'"),
        ({"restart": {"attempts": True}}, "streams.restart.attempts is 'True'"),
        ({"restart": {"attempts": -1}}, "write a whole number, 0 to give up"),
        ({"restart": {"backoff": "5"}}, "streams.restart.backoff is '5'"),
        ({"restart": {"tries": 3}}, "streams.restart.tries in the parameters is not"),
        ({"restart": "always"}, "streams.restart in the parameters is 'always'"),
        ({"drain": "soon"}, "streams.drain is 'soon'"),
        ({"until": "noon"}, "streams.until is 'noon'"),
        ({"retry": 3}, "streams.retry in the parameters is not known; there are"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_write(streams, parameters, answer):
    with pytest.raises(streams.errors.StreamsError) as caught:
        streams.settings.RunSettings.from_parameters(parameters)

    assert answer in caught.value.message


# --- signals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "heard"),
    [(signal.SIGHUP, 0), (signal.SIGINT, 1)],
    ids=["nohup outlives its terminal", "a script's background hears Ctrl-C"],
)
def test_of_ignored_signals_only_that_of_a_terminal_stays_ignored(
    streams, number, heard
):
    before = signal.signal(number, signal.SIG_IGN)
    stop = streams.signals.StopRequest()
    try:
        stop.listen()
        os.kill(os.getpid(), number)
        assert stop.count == heard
    finally:
        stop.restore()
        signal.signal(number, before)


# --- locks -------------------------------------------------------------------


def test_a_lock_is_the_operating_systems_and_dies_with_its_holder(streams, tmp_path):
    """A second process holds it, is seen, and is killed."""
    source = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from cold_store.extras.streams.locks import Lock\n"
        "lock = Lock(sys.argv[2]); print('held', flush=True); input()"
    )
    folder = str(Path(streams.locks.__file__).parents[3])
    child = subprocess.Popen(
        [sys.executable, "-c", source, folder, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "held\n"
        by = streams.locks.holder(str(tmp_path))
        assert (by["pid"], by["host"]) == (child.pid, socket.gethostname())
        with pytest.raises(
            streams.errors.StreamsError, match=f"process {child.pid} on"
        ):
            streams.locks.Lock(str(tmp_path))
    finally:
        child.kill()
        child.wait()

    assert streams.locks.holder(str(tmp_path)) is None
    lock = streams.locks.Lock(str(tmp_path))
    assert streams.locks.holder(str(tmp_path))["pid"] == os.getpid()
    lock.release()
    assert streams.locks.holder(str(tmp_path)) is None


def remote(folder: Path) -> str:
    """Return a place that only Spark can reach, as far as the code knows."""
    return f"file://{folder}"


def write_lock(streams, folder: Path, text: str) -> None:
    (folder / f".{streams.locks.LOCK}.crc").unlink(missing_ok=True)
    (folder / streams.locks.LOCK).write_text(text)


def test_a_lock_elsewhere_holds_until_it_gives_no_sign_of_life(
    streams, spark, tmp_path
):
    write_lock(streams, tmp_path, json.dumps({"pid": 1, "host": "elsewhere"}))
    assert streams.locks.holder(remote(tmp_path))["host"] == "elsewhere"
    with pytest.raises(
        streams.errors.StreamsError, match="process 1 on host elsewhere"
    ):
        streams.locks.Lock(remote(tmp_path))

    long_ago = time.time() - streams.locks.STALE - 1
    os.utime(tmp_path / streams.locks.LOCK, (long_ago, long_ago))
    assert streams.locks.holder(remote(tmp_path)) is None
    lock = streams.locks.Lock(remote(tmp_path))
    assert streams.locks.holder(remote(tmp_path))["host"] == socket.gethostname()
    lock.release()
    assert not (tmp_path / streams.locks.LOCK).exists()


def test_a_lock_elsewhere_of_a_process_that_died_here_holds_nobody_up(
    streams, spark, tmp_path
):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    here = streams.locks._here()
    write_lock(streams, tmp_path, json.dumps({"pid": child.pid, **here}))
    assert streams.locks.holder(remote(tmp_path)) is None

    other = {**here, "namespace": "pid:[1]"}
    write_lock(streams, tmp_path, json.dumps({"pid": child.pid, **other}))
    assert streams.locks.holder(remote(tmp_path)), "another container's process"


def test_a_driver_that_a_cluster_starts_anew_waits_for_a_sign_of_the_last_one(
    streams, spark, tmp_path, monkeypatch
):
    monkeypatch.setattr(streams.locks, "LOOK", 0.01)
    lock = json.dumps({"pid": 1, "host": "elsewhere"})
    write_lock(streams, tmp_path, lock)
    looks = []

    def lives() -> None:
        """The other one gives a sign of life when we have looked a few times."""
        looks.append(1)
        if len(looks) == 3:
            soon = time.time() + 60
            os.utime(tmp_path / streams.locks.LOCK, (soon, soon))

    streams.locks.await_death(remote(tmp_path), lives)
    assert len(looks) >= 3 and streams.locks.holder(remote(tmp_path))

    write_lock(streams, tmp_path, lock)
    monkeypatch.setattr(streams.locks, "STALE", 2)
    streams.locks.await_death(remote(tmp_path), lambda: False)
    assert streams.locks.holder(remote(tmp_path)) is None


def test_a_checkpoint_of_another_entry_is_known_by_its_name_and_its_place(
    streams, code, spark, tmp_path
):
    """One of the two may change: an entry is renamed, or writes elsewhere from now on."""
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets/0").touch()

    def stream(name, file):
        there = code.datasets.MicroBatchDataset(
            datasets=[{"type": "pandas.CSVDataset", "filepath": str(tmp_path / file)}],
            save_args={"checkpoint": str(checkpoint)},
            name=name,
        )
        there.held = True
        there.save(spark.readStream.format("rate").load())
        return there

    streams.checkpoints.remember(stream("units", "units.csv"))

    assert not streams.checkpoints.changes(stream("units", "other.csv"), {})
    assert not streams.checkpoints.changes(stream("renamed", "units.csv"), {})
    other = {"other": stream("other", "other.csv")}
    (problem,) = streams.checks.changed(other, {})
    assert "it is that of units, which writes pandas.CSVDataset" in problem
    assert "give other a checkpoint" in problem and "reset" not in problem


def test_a_lock_that_is_released_while_somebody_looks_holds_nobody_up(
    streams, spark, tmp_path, monkeypatch
):
    write_lock(streams, tmp_path, json.dumps({"pid": 1, "host": "elsewhere"}))
    read = streams.locks._read

    def read_and_release(place):
        found = read(place)
        (tmp_path / streams.locks.LOCK).unlink()
        return found

    monkeypatch.setattr(streams.locks, "_read", read_and_release)

    assert streams.locks.holder(remote(tmp_path)) is None


def test_a_young_lock_that_cannot_be_read_holds(streams, spark, tmp_path):
    write_lock(streams, tmp_path, "")

    assert streams.locks.holder(remote(tmp_path))["pid"] == "unknown"


def test_who_was_taken_over_ends(streams, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(streams.locks, "SIGN", -1)
    lock = streams.locks.Lock(remote(tmp_path))
    lock.renew()
    write_lock(streams, tmp_path, json.dumps({"pid": 1, "host": "elsewhere"}))

    with pytest.raises(streams.errors.StreamsError, match="host elsewhere"):
        lock.renew()
    lock.release()
    assert (tmp_path / streams.locks.LOCK).exists(), "not ours to release"


# --- checkpoints -------------------------------------------------------------


def test_the_backlog_follows_compacted_logs_and_forgets_deleted_files(
    streams, spark, tmp_path
):
    """More batches than Spark's log keeps apart, looked at in between."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    backlog = streams.checkpoints.Backlog(str(checkpoint), [str(source)])
    for end in (7, 25):
        for number in range(end):
            (source / f"a file {number}.txt").write_text("x\n")
        frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        run_to_its_end(frame.writeStream.format("noop"), checkpoint)
        assert backlog.count() == (end, 0)

    assert list(checkpoint.glob("sources/0/*.compact"))
    (source / "new.txt").touch()
    (source / "_temporary").mkdir()
    (source / "a file 0.txt").unlink()
    assert backlog.count() == (24, 1)
    (source / "day=1").mkdir()
    assert backlog.count() is None


def test_the_backlog_behind_a_file_sink_is_what_was_committed(streams, spark, tmp_path):
    """What a killed batch has left in the folder is not waited for."""
    source, between, last = tmp_path / "in", tmp_path / "between", tmp_path / "last"
    source.mkdir()
    (source / "1.txt").write_text("x\n")
    frame = spark.readStream.text(str(source))
    run_to_its_end(
        frame.writeStream.format("text").option("path", str(between)), tmp_path / "a"
    )
    backlog = streams.checkpoints.Backlog(str(last), [str(between)])
    (between / "part-of-a-killed-batch.txt").touch()

    assert backlog.count() == (0, 1)
    for number in range(2, 26):  # more batches than its log keeps apart
        (source / f"{number}.txt").write_text("x\n")
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    writer = frame.writeStream.format("text").option("path", str(between))
    run_to_its_end(writer, tmp_path / "a")
    assert list(between.glob("_spark_metadata/*.compact"))
    assert backlog.count() == (0, 25)
    frame = spark.readStream.text(str(between))
    run_to_its_end(frame.writeStream.format("noop"), last)
    assert backlog.count() == (25, 0)
    assert not backlog._written and not backlog._read, "months would fill the memory"


def run_to_its_end(writer, checkpoint: Path) -> None:
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_checkpoint_damaged_by_a_power_cut_can_be_looked_at(streams, tmp_path):
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "7").touch()

    found = streams.checkpoints.position(str(tmp_path))

    assert (found.planned, found.committed, found.offsets) == (7, 7, [])


def test_a_small_file_is_written_as_a_whole_or_not_at_all(streams, tmp_path):
    place = streams.files.Local(str(tmp_path / "folder/file"))
    place.write("one")
    place.write("two")

    assert place.read() == "two"
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["file"]


def test_a_link_stays_and_what_it_leads_to_is_emptied(streams, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/file").touch()
    (tmp_path / "output").symlink_to(tmp_path / "disk")

    streams.files.Local(str(tmp_path / "output")).delete()

    assert (tmp_path / "output").is_dir() and not list((tmp_path / "disk").iterdir())


# --- which streams feed which ------------------------------------------------


PLACES = {
    "folders": lambda name: (
        {"file_format": "csv", "filepath": f"data/{name}"},
        {},
        {},
    ),
    "topics": lambda name: (
        {"file_format": "kafka"},
        {"topic": name},
        {"subscribe": f"others,{name}"},
    ),
}


@pytest.mark.parametrize("kind", PLACES)
def test_streams_that_read_each_other_are_named_not_followed_for_ever(
    streams, code, kind
):
    from cold_store.extras.streams import checks, topology
    from kedro.io import DataCatalog
    from kedro.pipeline import Node, Pipeline

    entries = {}
    for name in ("a", "b"):
        place, written, read = PLACES[kind](name)
        checkpoint = {"checkpoint": f"data/checkpoint/{name}"}
        entries[name] = code.datasets.SparkStreamingDataset(
            **place, save_args={**written, **checkpoint}
        )
        entries[f"{name}_again"] = code.datasets.SparkStreamingDataset(
            **place, load_args=read
        )
    catalog = DataCatalog(entries)
    pipeline = Pipeline(
        [
            Node(lambda x: x, "a_again", "b", name="to_b"),
            Node(lambda x: x, "b_again", "a", name="to_a"),
        ]
    )

    found = list(checks.circular(topology.Topology(pipeline, catalog)))

    assert found[0].startswith("a and b read each other's output")


def test_a_folder_inside_another_streams_folder_is_refused(code):
    from cold_store.extras.streams import checks

    folders = {
        "outer": "data/primary",
        "inner": "data/primary/sensor",
        "near": "data/p",
    }
    entries = {
        name: code.datasets.SparkStreamingDataset(
            file_format="csv",
            filepath=folder,
            save_args={"checkpoint": f"data/checkpoint/{name}"},
        )
        for name, folder in folders.items()
    }

    (found,) = checks.nested_places(entries)

    assert found.startswith("inner keeps ") and "which is outer's alone" in found


# --- secrets -----------------------------------------------------------------


def test_a_password_in_somebody_elses_message_is_not_repeated(streams):
    text = "cannot connect: jdbc:postgresql://h/db?user=u&password=tops3cret&ssl=true"

    sentence = streams.errors.first_sentence(OSError(text))

    assert "tops3cret" not in sentence and "user=u&password=***&ssl=true" in sentence


# --- what is legal, but hurts ------------------------------------------------


def sink(code, **arguments):
    save_args = {"checkpoint": "s3a://lake/checkpoint", **arguments}
    return code.datasets.SparkStreamingDataset(
        file_format="parquet", filepath="s3a://lake/out", save_args=save_args
    )


def test_batches_without_a_pause_onto_an_object_store_are_named(streams, code):
    quick, slow = sink(code), sink(code, trigger="1 minute")

    found = list(streams.warnings.costly_trigger({"quick": quick, "slow": slow}))

    assert len(found) == 1
    assert found[0].startswith("quick: without a trigger, batches follow each other")
    assert "set trigger: 1 minute" in found[0]


def test_state_grows_unless_a_time_among_its_keys_ends_it(streams, code, spark):
    """A watermark alone does not help: Spark drops groups by their own time."""
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 hour")
    grouped = {
        "by_value": rate.groupBy("value"),
        "by_window": rate.groupBy("value", F.window("timestamp", "1 hour")),
    }
    given = {}
    for name, groups in grouped.items():
        given[name] = sink(code)
        given[name].output_mode, given[name]._data = "update", groups.count()
    given["all"] = sink(code)
    given["all"].output_mode, given["all"]._data = "update", rate.groupBy().count()
    given["distinct"] = sink(code)
    given["distinct"]._data = rate.dropDuplicates(["value"])

    found = list(streams.warnings.growing_state(given))

    assert [line.partition(":")[0] for line in found] == ["by_value", "distinct"]


def test_a_local_checkpoint_on_a_cluster_is_named(streams, code):
    local = sink(code, checkpoint="data/checkpoint")
    both = {"local": local, "remote": sink(code)}
    cluster = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    laptop = SimpleNamespace(sparkContext=SimpleNamespace(master="local[*]"))

    found = list(streams.warnings.checkpoint_out_of_reach(cluster, both))

    assert len(found) == 1 and found[0].startswith("local: checkpoint")
    assert not list(streams.warnings.checkpoint_out_of_reach(laptop, both))


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"startingOffsets": "earliest"}, []),
        ({"startingTimestamp": 0}, []),
        (
            {},
            [
                "begins with the messages that arrive after its first start",
                "those between the two starts are kept by neither",
            ],
        ),
        (
            {"startingoffsets": "latest"},
            ["set startingOffsets: earliest in orders", "in its malformed_only copy"],
        ),
        (
            {"failOnDataLoss": False, "startingOffsets": "earliest"},
            ["failOnDataLoss is false in orders"],
        ),
    ],
)
def test_messages_that_would_be_skipped_are_named(
    streams, code, tmp_path, options, warned
):
    orders = code.datasets.SparkStreamingDataset(
        file_format="kafka",
        load_args={"subscribe": "orders", **options},
        payload={"format": "json", "schema": "sku STRING", "malformed": "keep"},
    )
    topology = SimpleNamespace(sources_of=lambda _: {"orders": orders})
    new = {"new": sink(code, checkpoint=str(tmp_path))}

    found = list(streams.warnings.messages_skipped(topology, new))

    assert len(found) == len(warned)
    assert all(text in line for text, line in zip(warned, found, strict=True))


def test_a_stream_that_has_begun_is_not_warned_about_where_it_begins(
    streams, code, tmp_path
):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").touch()
    orders = code.datasets.SparkStreamingDataset(
        file_format="kafka", load_args={"subscribe": "orders"}
    )
    topology = SimpleNamespace(sources_of=lambda _: {"orders": orders})
    begun = {"begun": sink(code, checkpoint=str(tmp_path))}

    assert not list(streams.warnings.messages_skipped(topology, begun))


# --- the table ---------------------------------------------------------------

REPORT = {
    "batchId": 1234,
    "numInputRows": 50_000,
    "batchDuration": 12_345,
    "inputRowsPerSecond": 41_234.5,
    "processedRowsPerSecond": 4_100_000.0,
    "eventTime": {"watermark": "2026-03-02T08:33:00.000Z"},
    "observedMetrics": {
        "quality": {"bad": 3},
        "raw.orders 1": {"malformed_messages": 2},
    },
    "stateOperators": [{"numRowsTotal": 700_000}, {"numRowsTotal": 34_000}],
    "sources": [
        {
            "description": "KafkaV2[Subscribe[a]]",
            "endOffset": {"a": {"0": 90, "1": 5}},
            "latestOffset": {"a": {"0": 100, "1": 5, "2": 7}},
        }
    ],
}


def watched(streams) -> list[SimpleNamespace]:
    batch = streams.reports.Batch(REPORT)
    return [
        SimpleNamespace(
            name="int.new_inventory",
            state="restarting 2/3",
            batch=batch,
            behind=batch.messages_behind,
            reason="java.io.IOException: No space left on device",
        ),
        SimpleNamespace(
            name="s", state="waiting", batch=None, behind=None, reason=None
        ),
    ]


def drawn(streams, width: int) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(streams.progress.table(watched(streams)))
    return console.export_text()


def test_the_table_fits_into_80_columns(streams):
    lines = drawn(streams, 80).splitlines()

    assert lines[0].split() == (
        "stream state batch in/s done/s took behind kept watermark".split()
    )
    for word in ["restarting 2/3", "1234", "41.2k", "4.1M", "12.3 s", "17", "734.0k"]:
        assert word in lines[1]
    assert lines[1].rstrip().endswith("03-02 08:33")
    left_out = "int.new_inventory: 2 malformed messages left out so far"
    assert lines[3].rstrip() == left_out
    assert "int.new_inventory: last error: java.io.IOException: No" in lines[4]


def test_a_terminal_that_is_closed_is_no_reason_to_fail(streams, monkeypatch):
    ours, theirs = os.openpty()
    ended = []
    monkeypatch.setenv("TERM", "xterm")
    with suppress(OSError), os.fdopen(theirs, "w") as file:  # that cannot be flushed
        console = Console(file=file, force_terminal=True, no_color=False)
        monkeypatch.setattr(streams.progress.rich, "get_console", lambda: console)
        with streams.progress.Progress(10.0, prints=False) as table:
            table.show(watched(streams))
            seen = b""
            while b"int.new_inventory" not in seen:
                seen += os.read(ours, 10_000)
            os.close(ours)
            table.show(watched(streams), now=True)
        ended.append(True)
    assert ended


def test_a_log_line_says_what_the_table_says(streams):
    batch = streams.reports.Batch(REPORT)

    assert streams.progress.sentence(batch, 17) == (
        "batch 1234, 50000 rows in 12.3 s (4.1M rows/s), 17 behind, 734000 rows of "
        "state, watermark 2026-03-02T08:33:00.000Z, 2 malformed messages left out so "
        "far, quality: bad=3"
    )
