"""Streams that are stopped, fail, and are started again, as in production."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pexpect
import pytest
import yaml
from chaos import COPY as CHAOS_COPY
from chaos import attack, committed_files
from conftest import (
    Project,
    is_alive,
    ok,
    wait_until,
)
from shell import fetch
from test_runs import (
    SENSOR,
    STOCK,
    assert_all_is_written,
    expected_averages,
    expected_deliveries,
    expected_stock,
    without_processing_time,
)

QUICK = ("backoff: 5 seconds", "backoff: 0.1 seconds")

# A store that a replay would change, and that takes its time.
LEDGER = '''"""A stream of numbers into a ledger that only ever grows."""

import time
from pathlib import Path

from kedro.io import AbstractDataset
from kedro.pipeline import Node, Pipeline


class Ledger(AbstractDataset):
    def __init__(self, *, filepath, seconds):
        self._path, self._seconds = Path(filepath), seconds

    def load(self):
        return self._path.read_text()

    def save(self, batch):
        first = batch.agg({"value": "min"}).first()[0]
        with self._path.open("a") as file:
            file.write(f"begin {first}\\n")
            file.flush()
            time.sleep(self._seconds)
            file.write(f"end {first}\\n")

    def _describe(self):
        return {}


def take(numbers):
    return numbers


def create_pipeline():
    return Pipeline([Node(take, "numbers", "ledger", name="take")])
'''
LEDGER_CATALOG = """
numbers:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: rate-micro-batch
  load_args: {{rowsPerBatch: 10, numPartitions: 1, startTimestamp: 1767225600000}}

ledger:
  type: cold_store.extras.datasets.MicroBatchDataset
  datasets:
    - type: cold_store.pipelines.ledger.Ledger
      filepath: data/ledger.txt
      seconds: 1
  save_args:
    checkpoint: data/04_checkpoint/ledger
    {trigger}
"""


FILES_INSTEAD = """SparkStreamingDataset
  file_format: csv
  filepath: data/ledger
  save_args"""


def add_ledger(project: Project, trigger: str) -> Path:
    """Add a stream with constant input, and a slow sink that appends."""
    package = project.folder / "src/cold_store/pipelines/ledger"
    package.mkdir()
    (package / "__init__.py").write_text(LEDGER)
    catalog = project.folder / "conf/base/catalog.yml"
    catalog.write_text(catalog.read_text() + LEDGER_CATALOG.format(trigger=trigger))
    return project.folder / "data/ledger.txt"


def entries(ledger: Path, word: str) -> list[str]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [line.split()[1] for line in lines if line.startswith(word)]


# --- stopping ----------------------------------------------------------------


@pytest.mark.parametrize(
    "trigger", ["", "trigger: 20 seconds"], ids=["none", "interval"]
)
def test_a_batch_that_writes_is_finished_and_committed_before_the_stop(
    project, trigger
):
    """Under constant input, twice: nothing is cut, and nothing is written twice."""
    ledger = add_ledger(project, trigger)

    def is_second(before: int) -> bool:
        """Whether one more batch writes; with an interval, early in the interval."""
        begun, ended = entries(ledger, "begin"), entries(ledger, "end")
        is_early = not trigger or (len(begun) > len(ended) and time.time() % 20 < 8)
        return len(begun) > before + 1 and is_early

    for _ in range(2):
        before = len(entries(ledger, "begin"))
        with project.live("--pipelines=ledger") as run:
            wait_until(lambda n=before: is_second(n), "a second batch")
            code = run.stop()

        assert code == 0, run.text
        assert "Traceback" not in run.text
        begun, ended = entries(ledger, "begin"), entries(ledger, "end")
        assert begun == ended and len(begun) == len(set(begun))
        assert project.newest("ledger") == len(begun) - 1
        assert f"ledger: ended, last committed batch: {len(begun) - 1}" in run.text
    if trigger:
        assert project.newest("ledger", "offsets") == project.newest("ledger")


def test_with_an_interval_the_newest_offset_of_a_file_sink_has_its_commit(project):
    with project.live() as run:
        wait_until(lambda: project.lines(SENSOR) == expected_averages(project), "rows")
        wait_until(lambda: project.commits("processed_stock"), "the stock")
        code = run.stop(signal.SIGINT)

    assert code == 0, run.text
    for stream in ("int_new_inventory", "processed_stock", "processed_sensor"):
        assert project.newest(stream, "offsets") == project.newest(stream) >= 0


def test_a_file_sink_under_constant_input_stops_at_once_and_doubles_nothing(project):
    """Its next batch may be cut; the next run replays it over what it left."""
    add_ledger(project, "")
    project.edit(
        "conf/base/catalog.yml",
        (
            "    - type: cold_store.pipelines.ledger.Ledger\n"
            "      filepath: data/ledger.txt\n"
            "      seconds: 1\n",
            "",
        ),
        ("MicroBatchDataset\n  datasets:\n  save_args", FILES_INSTEAD),
    )
    for _ in range(2):
        committed = project.newest("ledger")
        with project.live("--pipelines=ledger") as run:
            wait_until(
                lambda n=committed: project.newest("ledger") > n + 2, "some batches"
            )
            code = run.stop()
        assert code == 0, run.text

    lines = committed_lines(project.folder / "data/ledger")
    numbers = [int(line.rpartition(",")[2]) for line in lines]
    assert sorted(numbers) == list(range(len(numbers))) and numbers


def committed_lines(output: Path) -> list[str]:
    files = sorted(committed_files(output))
    texts = [Path(file).read_text().splitlines() for file in files]
    return [line for text in texts for line in text if not line.startswith("sku,")]


@pytest.fixture
def terminal():
    """Let runs hear that a terminal is closed, even where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGHUP]], ids=["term", "hup"]
)
def test_a_signal_for_the_whole_group_is_drained_as_well(project, terminal, signals):
    """Process managers signal every process; a terminal that is closed does so twice."""
    ledger = add_ledger(project, "")
    with project.live("--pipelines=ledger") as run:
        wait_until(lambda: entries(ledger, "begin"), "a batch")
        for number in signals:
            os.killpg(run.process.pid, number)
        code = run.end()

    assert code == 0, run.text
    assert entries(ledger, "begin") == entries(ledger, "end")
    assert "last committed batch" in run.text


def test_a_second_ctrl_c_ends_a_batch_that_python_writes(project):
    """Java cannot interrupt Python, so it is left behind."""
    ledger = add_ledger(project, "")
    project.edit("conf/base/catalog.yml", ("seconds: 1\n", "seconds: 3600\n"))
    project.edit("conf/base/parameters.yml", ("drain: 30 seconds", "drain: 1 hour"))
    with project.live("--pipelines=ledger") as run:
        wait_until(lambda: entries(ledger, "begin"), "the batch that never ends")
        run.process.send_signal(signal.SIGINT)
        run.says("Stopping")
        family = run.family
        code = run.stop(signal.SIGINT)

    assert code == 0, run.text
    assert "last committed batch: none" in run.text
    assert "Traceback" not in run.text
    wait_until(lambda: not any(map(is_alive, family)), "the last child's end")


def test_a_batch_that_outlasts_the_drain_is_cut_and_replayed(project):
    mark = project.folder / "mark"
    hold_readings_until(project, mark)
    project.edit("conf/base/parameters.yml", ("drain: 30 seconds", "drain: 1 second"))
    offsets = project.folder / "data/04_checkpoint/processed_sensor/offsets/0"
    with project.live("--pipelines=sensor") as run:
        wait_until(offsets.exists, "the batch that waits")
        wait_until(lambda: len(run.started("pyspark.daemon")) > 1, "its worker")
        code = run.stop()
    assert code == 0, run.text
    said = " ".join(run.text.split())
    assert "processed.sensor: ended, last committed batch: none; batch 0, which" in said

    mark.touch()
    project.run("--pipelines=sensor")
    assert project.lines(SENSOR) == expected_averages(project)


def test_a_signal_while_nodes_describe_streams_ends_the_run(project):
    mark = project.folder / "mark"
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        (
            "    complete = readings.dropna",
            "    import pathlib, time\n"
            f"    pathlib.Path({str(mark)!r}).touch()\n"
            f"    while pathlib.Path({str(mark)!r}).exists():\n"
            "        time.sleep(0.05)\n"
            "    complete = readings.dropna",
        ),
    )
    with project.live("--pipelines=sensor") as run:
        wait_until(mark.exists, "the node")
        jvm = run.jvm()
        run.process.send_signal(signal.SIGTERM)
        mark.unlink()
        code = run.end()

    assert code == 0, run.text
    assert "Stopped before any stream was started" in run.text
    assert "Traceback" not in run.text and project.commits("processed_sensor") == 0
    wait_until(lambda: not any(map(is_alive, jvm)), "the JVM's end")


# --- failing and restarting --------------------------------------------------


def test_a_stream_that_fails_is_restarted_alone_and_recovers(project):
    """A folder stands where the stock should be written; then it goes away."""
    project.edit("conf/base/parameters.yml", QUICK, ("attempts: 3", "attempts: 1000"))
    in_the_way = project.folder / STOCK
    in_the_way.mkdir(parents=True)
    with project.live() as run:
        run.says(
            "processed.stock failed, restart 2 of 1000 in 0.2 seconds: pandas.CSVDataset"
        )
        wait_until(
            lambda: project.lines(SENSOR) == expected_averages(project), "the others"
        )
        in_the_way.rmdir()
        wait_until(lambda: project.commits("processed_stock"), "the recovery")
        sample = project.folder / "data/01_raw/stream/inventory/again.json"
        part = shutil.copy(sample.with_name("deliveries_01.json"), project.folder)
        Path(part).rename(sample)
        wait_until(
            lambda: project.lines(STOCK) == expected_stock(project), "the new delivery"
        )
        code = run.stop()

    assert code == 0, run.text
    assert "Traceback" not in run.text
    assert_all_is_written(project)


def test_a_stream_that_cannot_be_restarted_ends_the_run_and_says_why(project):
    project.edit("conf/base/parameters.yml", QUICK, ("attempts: 3", "attempts: 2"))
    (project.folder / STOCK).mkdir(parents=True)

    result = project.kedro("run")

    assert result.returncode == 1
    assert "restart 2 of 2 in 0.2 seconds" in result.stdout
    last = result.stderr.strip().splitlines()[-2:]
    stock = f"pandas.CSVDataset {STOCK}"
    assert last[0].startswith(
        f"Error: stream processed.stock failed: {stock}: IsADirectoryError"
    )
    assert "(restarted 2 times in vain)" in last[0]
    assert "run again: a stream goes on from its last committed batch" in last[1]
    assert "processed.stock: failed, last committed batch: none" in result.stdout
    assert re.search(r"processed.sensor: ended, last committed", result.stdout)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("if (value or 0) > 900: raise ValueError('poison')", "ValueError: poison"),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_error_in_python_code_is_final_at_once(project, code, reason):
    poison(project, code)

    result = project.kedro("run", "--pipelines=sensor")

    assert result.returncode == 1
    assert "restart" not in result.stdout
    assert f"stream processed.sensor failed: {reason}" in result.stderr


def poison(project: Project, code: str) -> None:
    """Send every reading through a Python function."""
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        (
            "    complete = readings.dropna",
            "    @F.udf('double')\n"
            "    def judge(value):\n"
            f"        {code}\n\n"
            "    readings = readings.withColumn('value', judge('value'))\n"
            "    complete = readings.dropna",
        ),
    )


def hold_readings_until(project: Project, file: Path) -> None:
    """Let the first reading of a batch wait until a file appears."""
    poison(
        project,
        "import os, pathlib, time\n"
        f"        pathlib.Path({held_at(file)!r}).write_text(str(os.getpid()))\n"
        f"        while not pathlib.Path({str(file)!r}).exists():\n"
        "            time.sleep(0.05)\n"
        "        return value",
    )


def held_at(file: Path) -> str:
    return f"{file}.held"


def worker_held_by(file: Path) -> int:
    """Return the process that waits for a file, once there is one.

    A worker that dies before it has begun its task is replaced without a failure.
    """
    told = Path(held_at(file))
    wait_until(lambda: told.exists() and told.read_text(), "a worker that waits")
    return int(told.read_text())


def test_a_killed_python_worker_costs_a_restart_and_no_row(project):
    """It waits, at its first reading, for a file that appears only after its death."""
    project.edit("conf/base/parameters.yml", QUICK)
    mark = project.folder / "mark"
    hold_readings_until(project, mark)
    with project.live("--pipelines=sensor") as run:
        os.kill(worker_held_by(mark), signal.SIGKILL)
        run.says("processed.sensor failed, restart 1 of 3")
        mark.touch()
        wait_until(
            lambda: project.lines(SENSOR) == expected_averages(project), "all averages"
        )
        code = run.stop()

    assert code == 0, run.text


def test_a_source_folder_that_goes_away_and_comes_back_costs_no_row(project):
    """It goes while files wait to be read, so that a batch looks for one in vain."""
    project.edit(
        "conf/base/parameters.yml",
        ("backoff: 5 seconds", "backoff: 2 seconds"),
        ("attempts: 3", "attempts: 1000"),
    )
    gate = project.folder / "gate"
    hold_readings_until(project, gate)
    source = project.folder / "data/01_raw/stream/sensor"
    aside = project.folder / "data/01_raw/stream/aside"
    with project.live("--pipelines=sensor") as run:
        worker = worker_held_by(gate)
        source.rename(aside)
        os.kill(worker, signal.SIGKILL)  # the batch begins again, in vain
        run.says("processed.sensor failed, restart 2 of 1000")
        gate.touch()
        aside.rename(source)
        wait_until(
            lambda: project.lines(SENSOR) == expected_averages(project), "all averages"
        )
        code = run.stop()

    assert code == 0, run.text


def test_a_source_folder_that_is_gone_is_said_so_and_that_it_is_back(project):
    source = project.folder / "data/01_raw/stream/sensor"
    aside = project.folder / "data/01_raw/stream/aside"
    with project.live("--pipelines=sensor") as run:
        wait_until(
            lambda: project.lines(SENSOR) == expected_averages(project), "all averages"
        )
        source.rename(aside)
        run.says("data/01_raw/stream/sensor is gone; waiting for its return")
        status = ok(*project.command("streams", "status"), cwd=project.folder)
        assert "csv data/01_raw/stream/sensor, which is gone" in status
        aside.rename(source)
        run.says("data/01_raw/stream/sensor is back")
        assert run.stop() == 0, run.text


def test_a_full_disk_costs_restarts_and_no_row(project, tmp_path):
    """The output is on a disk of a few kilobytes, until it is given more."""
    disk = project.folder / "data/02_intermediate"
    disk.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode()}")
    try:
        project.edit(
            "conf/base/parameters.yml", QUICK, ("attempts: 3", "attempts: 1000")
        )
        with project.live("--pipelines=inventory") as run:
            run.says("int.new_inventory failed, restart 2 of 1000")
            ok("mount", "-o", "remount,size=10m", disk)
            wait_until(lambda: project.lines(STOCK) == expected_stock(project), "stock")
            code = run.stop()
        assert code == 0, run.text
        assert "No space left" in run.text
        lines = committed_lines(project.folder / "data/02_intermediate/inventory")
        assert without_processing_time(lines) == expected_deliveries(project)
    finally:
        ok("umount", disk)


# --- seeing ------------------------------------------------------------------


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_terminals_get_log_lines(project, variable):
    child = project.terminal(
        "--pipelines=sensor", "--params=streams.progress=1 second", **variable
    )
    try:
        child.expect(r"processed\.sensor: batch \S*\d")
        child.sendintr()
        child.expect(pexpect.EOF)
    finally:
        child.close()

    assert child.exitstatus == 0


def test_log_lines_come_only_when_something_changed(project):
    project.edit(
        "conf/base/parameters.yml", ("progress: 10 seconds", "progress: 0.1 seconds")
    )
    with project.live() as run:
        wait_until(lambda: project.commits("processed_stock"), "the stock")
        wait_until(lambda: project.lines(SENSOR) == expected_averages(project), "rows")
        run.stop()

    lines = re.findall(r"(\S+: batch \d+), ", run.text)
    assert lines and len(lines) == len(set(lines))


def test_what_nodes_observe_is_in_the_log_and_in_the_status(project):
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        (
            "    complete = readings.dropna",
            "    readings = readings.observe('quality', F.count('*').alias('seen'))\n"
            "    complete = readings.dropna",
        ),
    )

    output = project.run("--pipelines=sensor")

    assert re.search(
        r"processed\.sensor: batch \d.*quality: seen=\d+", output, re.DOTALL
    )
    status = ok(*project.command("streams", "status"), cwd=project.folder)
    assert re.search(r"observed +quality: seen=\d+", status)


def test_prometheus_gets_every_figure_of_the_dashboard_and_the_alerts(project):
    """By scraping a run; Spark's own page shows the streams under the same names."""
    dashboard = json.loads((project.folder / "docs/grafana_dashboard.json").read_text())
    alerts = yaml.safe_load((project.folder / "docs/prometheus_alerts.yml").read_text())
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {name for expr in asked for name in re.findall(r'__name__=~"(.+?)"', expr)}
    streams = ["int_new_inventory", "processed_sensor", "processed_stock"]

    with project.live() as run:
        wait_until(lambda: all(map(project.commits, streams)), "a batch of each")
        page = re.search(r"UI at (http://\S+)", run.text)[1]
        served = fetch(f"{page}/metrics/prometheus/").splitlines()
        figures = [line.partition("{")[0] for line in served]
        streaming = fetch(f"{page}/StreamingQuery/")
        run.stop()

    assert len(names) >= 6
    for name in names:
        found = [figure for figure in figures if re.fullmatch(name, figure)]
        for stream in streams:
            assert [f for f in found if f"_{stream}_" in f], (name, stream)
    for stream in ("int.new_inventory", "processed.sensor", "processed.stock"):
        assert stream in streaming


def streams_status(project: Project) -> dict[str, dict]:
    text = ok(*project.command("streams", "status", "--json"), cwd=project.folder)
    return {stream["stream"]: stream for stream in json.loads(text)}


def test_status_tells_before_during_and_after_a_run(project):
    before = streams_status(project)
    assert {stream["state"] for stream in before.values()} == {"never started"}

    with project.live() as run:
        wait_until(lambda: project.commits("processed_stock"), "the stock")
        wait_until(lambda: project.lines(SENSOR) == expected_averages(project), "rows")
        during = streams_status(project)
        code = run.stop()
    assert code == 0
    assert {s["process"]["pid"] for s in during.values()} == {run.process.pid}

    after = streams_status(project)
    sensor = after["processed.sensor"]
    assert sensor["state"] == "stopped" and sensor["process"] is None
    assert sensor["committed_batch"] == project.newest("processed_sensor")
    assert sensor["uncommitted_batch"] is None
    assert (sensor["files_read"], sensor["files_behind"]) == (4, 0)
    assert sensor["state_bytes"] > 0 and sensor["last_batch"]["watermark"]
    assert after["processed.stock"]["sources"] == [
        f"csv {project.folder}/data/02_intermediate/inventory"
    ]


def test_status_starts_no_java_and_sees_a_batch_that_was_begun_only(project):
    project.run("--pipelines=sensor")
    checkpoint = project.folder / "data/04_checkpoint/processed_sensor"
    newest = project.newest("processed_sensor")
    (checkpoint / "commits" / str(newest)).unlink()
    (project.folder / "data/01_raw/stream/sensor/later.csv").touch()

    result = project.kedro(
        "streams", "status", env={**os.environ, "JAVA_HOME": "/none"}
    )

    assert result.returncode == 0, result.stderr
    assert f"  committed    batch {newest - 1} at 20" in result.stdout
    assert f"  uncommitted  batch {newest}\n" in result.stdout
    assert "csv data/01_raw/stream/sensor, 4 files read, 1 behind" in result.stdout
    assert "processed.stock: never started" in result.stdout


# --- starting over -----------------------------------------------------------


def test_reset_deletes_checkpoint_and_output_as_a_pair(project):
    project.run()

    shown = project.kedro("streams", "reset", "processed.sensor", input="n\n")
    assert shown.returncode == 0
    assert re.search(r"delete data/03_primary/sensor \(\d+ k?B\)", shown.stdout)
    assert re.search(r"delete data/04_checkpoint/processed_sensor \(\d", shown.stdout)
    assert project.lines(SENSOR), "a no is a no"

    ok(
        *project.command("streams", "reset", "processed.sensor", "--yes"),
        cwd=project.folder,
    )
    assert not (project.folder / "data/03_primary/sensor").exists()
    assert not (project.folder / "data/04_checkpoint/processed_sensor").exists()
    project.run()
    assert_all_is_written(project)


def test_reset_refuses_a_checkpoint_that_another_stream_has_too(project):
    project.edit(
        "conf/base/catalog.yml",
        ("04_checkpoint/processed_stock", "04_checkpoint/processed_sensor"),
    )

    refused = project.kedro("streams", "reset", "processed.stock", "--yes")

    said = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode == 1
    assert "processed.sensor and processed.stock have one checkpoint" in said


def test_reset_says_that_batches_are_numbered_anew(project):
    project.edit("conf/base/catalog.yml", ("stock.csv", "stock/{batch_id}.csv"))
    project.run("--pipelines=inventory")

    shown = project.kedro("streams", "reset", "processed.stock", input="n\n").stdout

    said = " ".join(shown.split())
    assert "stays: empty that first, because batches are numbered anew" in said


def test_reset_works_on_any_file_system_of_hadoop(project):
    """``file://`` is one: such places are asked for, and deleted, through Spark."""
    project.edit(
        "conf/base/catalog.yml",
        ("data/03_primary/sensor/", f"file://{project.folder}/data/03_primary/sensor/"),
        (
            "data/04_checkpoint/processed_sensor",
            f"file://{project.folder}/data/04_checkpoint/processed_sensor",
        ),
    )
    project.run("--pipelines=sensor")

    done = project.kedro("streams", "reset", "processed.sensor", "--yes")

    assert done.returncode == 0, done.stderr
    assert re.search(r"delete file://\S+sensor \(\d", done.stdout)
    assert not (project.folder / "data/03_primary/sensor").exists()
    assert not (project.folder / "data/04_checkpoint/processed_sensor").exists()


def test_reset_names_the_streams_that_will_see_rows_again(project):
    project.run("--pipelines=inventory")
    assert "kedro streams reset int.new_inventory processed.stock --env=local" in (
        project.kedro(
            "streams", "reset", "int.new_inventory", "--env=local", input="n\n"
        ).stdout
    )

    one = project.kedro("streams", "reset", "int.new_inventory", input="n\n").stdout
    assert "Nothing was deleted." in one
    assert "processed.stock will see all rows of int.new_inventory again" in one
    assert "kedro streams reset int.new_inventory processed.stock" in one

    both = project.kedro(
        "streams", "reset", "int.new_inventory", "processed.stock", "--yes"
    ).stdout
    assert "will see all rows" not in both
    assert "wrote to pandas.CSVDataset data/03_primary/stock.csv stays" in both
    project.run("--pipelines=inventory")
    assert project.lines(STOCK) == expected_stock(project)

    ok(
        *project.command("streams", "reset", "int.new_inventory", "--yes"),
        cwd=project.folder,
    )
    check = project.kedro("streams", "check", "--pipelines=inventory")
    assert check.returncode == 0, "a folder that a stream will make is no other one"


def test_reset_refuses_unknown_and_running_streams(project):
    unknown = project.kedro("streams", "reset", "processed.sensors")
    assert unknown.returncode == 1
    assert "there is no stream processed.sensors; there are int.malf" in unknown.stderr

    with project.live("--pipelines=sensor") as run:
        wait_until(lambda: project.lines(SENSOR), "rows")
        refused = project.kedro("streams", "reset", "processed.sensor", "--yes")
        run.stop()
    assert refused.returncode == 1
    assert f"in use by process {run.process.pid} on host" in refused.stderr
    assert project.lines(SENSOR) and project.commits("processed_sensor")


def test_a_second_run_on_a_checkpoint_is_refused_and_a_crash_blocks_nobody(project):
    with project.live("--pipelines=sensor") as run:
        wait_until(lambda: project.commits("processed_sensor"), "a batch")
        second = project.kedro("run", "--pipelines=sensor")
        assert second.returncode == 1
        assert f"in use by process {run.process.pid} on host {os.uname().nodename}" in (
            second.stderr
        )
        other = project.kedro(
            "run", "--params=streams.until=caught_up", "--pipelines=inventory"
        )
        assert other.returncode == 0, other.stderr
        run.kill()

    assert (project.folder / "data/04_checkpoint/processed_sensor/_lock.json").exists()
    project.run("--pipelines=sensor")
    assert project.lines(SENSOR) == expected_averages(project)


# --- checking ----------------------------------------------------------------


def streams_check(project: Project, *arguments: str) -> subprocess.CompletedProcess:
    return project.kedro("streams", "check", *arguments)


def test_check_says_in_a_line_what_every_stream_does_and_writes_nothing(project):
    before = sorted(project.folder.glob("data/**/*"))

    result = streams_check(project)

    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        "processed.sensor: csv data/01_raw/stream/sensor -> csv data/03_primary/sensor; "
        "append, every 2 seconds, checkpoint data/04_checkpoint/processed_sensor, "
        "stateful, watermark read_at 10 minutes\n"
    ) in result.stdout
    assert (
        "int.new_inventory: json data/01_raw/stream/inventory -> "
        "csv data/02_intermediate/inventory; append, every 2 seconds, "
        "checkpoint data/04_checkpoint/int_new_inventory, stateless, no watermark\n"
    ) in result.stdout
    assert (
        "processed.stock: csv data/02_intermediate/inventory -> pandas.CSV"
        in result.stdout
    )
    assert "warning" not in result.stdout
    assert sorted(project.folder.glob("data/**/*")) == before


def test_check_finds_all_problems_at_once(project):
    """A wrong key, a missing folder, a plan that cannot run, and code that fails."""
    project.edit(
        "conf/base/catalog.yml",
        ("  file_format: json", "  file_fromat: json"),
        ("filepath: data/01_raw/products/", "filepath: data/01_raw/product/"),
    )
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        ('.withWatermark("read_at", lateness).drop', ".drop"),
    )

    result = streams_check(project)

    assert result.returncode == 1
    problems = [line for line in result.stdout.splitlines() if "problem:" in line]
    assert len(problems) == 4, result.stdout
    for name in ("raw.new_inventory", "raw.new_inventory_malformed"):
        assert f"{name}: key 'file_fromat' is not known" in result.stdout
    assert "data/01_raw/product does not exist" in result.stdout
    assert "processed.sensor: output_mode 'append' writes a group once" in result.stdout


def test_a_folder_that_is_misspelt_is_all_that_check_complains_of(project):
    """A checkpoint that is there does not become another stream's by that."""
    project.run("--pipelines=sensor")
    project.edit("conf/base/catalog.yml", ("stream/sensor/", "stream/sensr/"))

    result = streams_check(project, "--pipelines=sensor")

    assert result.returncode == 1
    problems = [line for line in result.stdout.splitlines() if "problem:" in line]
    assert len(problems) == 1, result.stdout
    assert "data/01_raw/stream/sensr does not exist" in problems[0]


def test_a_sink_that_cannot_be_built_is_complained_of_once(project):
    project.edit(
        "conf/base/catalog.yml",
        ("filepath: data/03_primary/sensor/", "filepat: data/03_primary/sensor/"),
    )

    result = streams_check(project, "--pipelines=sensor")

    (problem,) = [line for line in result.stdout.splitlines() if "problem:" in line]
    assert "processed.sensor: key 'filepat' is not known" in problem


def test_an_input_that_is_nowhere_is_a_problem_of_check_and_of_a_run(project):
    package = project.folder / "src/cold_store/pipelines/copy"
    package.mkdir()
    (package / "__init__.py").write_text(
        CHAOS_COPY.replace("int.new_inventory", "int.nothing")
    )

    sentence = "int.nothing: no node makes it and it is not in the catalog"
    assert sentence in streams_check(project).stdout
    result = project.kedro("run")
    assert result.returncode == 1
    assert sentence in result.stderr and "Traceback" not in result.stdout


def test_a_column_that_does_not_exist_is_a_sentence_at_the_end(project):
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        ('groupBy("sensor_id"', 'groupBy("sensorid"'),
    )
    result = project.kedro("run", "--pipelines=sensor")
    assert result.returncode == 1
    assert "Traceback" not in result.stdout + result.stderr
    last = result.stderr.splitlines()[-1]
    assert "Spark refuses: [UNRESOLVED_COLUMN" in last and "`sensor_id`" in last
    assert "DataFrameQueryContextLogger" not in result.stdout + result.stderr


def test_check_warns_about_what_is_legal_but_hurts(project):
    project.run("--pipelines=sensor")
    project.edit(
        "conf/base/catalog.yml",
        ("output_mode: complete ", "output_mode: update "),
        (
            "    checkpoint: data/04_checkpoint/int_new_inventory   # goes with filepath: "
            "kedro streams reset deletes both\n    trigger: 2 seconds             # look for new "
            "files this often\n",
            "    checkpoint: data/04_checkpoint/int_new_inventory\n",
        ),
    )
    spark = project.folder / "conf/local/spark.yml"
    spark.write_text("spark.sql.shuffle.partitions: 1\n")

    result = streams_check(project)

    assert result.returncode == 0, result.stdout
    assert "processed.stock: keeps state that no watermark ends" in result.stdout
    assert "processed.sensor: its state has 2 partitions since" in result.stdout


# --- faults ------------------------------------------------------------------


def test_five_kills_lose_nothing_and_double_nothing(tmp_path):
    chaos, report = attack(tmp_path, kills=5, seed=4)

    assert chaos.commits_at_kill[-1] > 0
    for sink in report.values():
        assert sink["sent"] == sink["found"] > 0
        assert sink["lost"] == sink["doubled"] == 0
