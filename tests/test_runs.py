"""Whole runs of the generated project, as a user starts and stops them."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pexpect
import psutil
import pytest
import yaml
from conftest import (
    BIN,
    BOUNDED,
    ROOT,
    Project,
    is_alive,
    new_environment,
    ok,
    wait_until,
)

DELIVERIES = "data/02_intermediate/inventory/*.csv"
STOCK = "data/03_primary/stock.csv"
SENSOR = "data/03_primary/sensor/*.csv"


# --- the truth, computed from the samples ------------------------------------


def by_age(folder: Path) -> list[Path]:
    """Return files in the order in which Spark reads them."""
    return sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)


def expected_deliveries(project: Project) -> list[str]:
    """Every delivery once, with what is known about its product."""
    with (project.folder / "data/01_raw/products/products.csv").open() as file:
        products = {row["sku"]: row for row in csv.DictReader(file)}
    rows = []
    for file in (project.folder / "data/01_raw/stream/inventory").iterdir():
        for line in file.read_text().splitlines():
            delivery = json.loads(line)
            known = products.get(delivery["sku"], {"name": "", "aisle": ""})
            when = delivery["arrived_at"].replace("Z", ".000Z")
            rows.append(
                f"{delivery['sku']},{delivery['new_stock']},{when},"
                f"{known['name']},{known['aisle']}"
            )
    return sorted(rows)


def expected_stock(project: Project) -> list[str]:
    """Units of each product."""
    units: dict[tuple, int] = defaultdict(int)
    for row in expected_deliveries(project):
        sku, new_stock, _, name, aisle = row.split(",")
        units[sku, name, aisle] += int(new_stock)
    return sorted(f"{','.join(key)},{total}" for key, total in units.items())


def expected_averages(project: Project) -> list[str]:
    """Closed windows only, without what is broken, impossible, repeated or late."""
    parameters = yaml.safe_load(
        (project.folder / "conf/base/parameters.yml").read_text()
    )["sensor"]
    width = timedelta(minutes=int(parameters["window"].split()[0]))
    lateness = timedelta(minutes=int(parameters["lateness"].split()[0]))
    watermark = datetime.min
    seen: set = set()
    windows: dict[tuple, list[float]] = defaultdict(list)
    for file in by_age(project.folder / "data/01_raw/stream/sensor"):
        newest = watermark
        for row in csv.DictReader(file.open()):
            try:
                value = float(row["value"])
                read_at = datetime.fromisoformat(row["read_at"].removesuffix("Z"))
            except ValueError:
                continue
            if not parameters["lowest"] <= value <= parameters["highest"]:
                continue
            newest = max(newest, read_at - lateness)
            start = read_at - (read_at - datetime.min) % width
            key = (row["sensor_id"], read_at)
            if read_at < watermark or key in seen:
                continue
            seen.add(key)
            windows[row["sensor_id"], start].append(value)
        watermark = newest
    stamp = "%Y-%m-%dT%H:%M:%S.000Z"
    return sorted(
        f"{sensor},{start:{stamp}},{start + width:{stamp}},"
        f"{round(sum(values) / len(values), 2)},{len(values)}"
        for (sensor, start), values in windows.items()
        if start + width <= watermark
    )


def without_processing_time(lines: list[str]) -> list[str]:
    return sorted(line.rpartition(",")[0] for line in lines)


def assert_all_is_written(project: Project) -> None:
    assert without_processing_time(project.lines(DELIVERIES)) == expected_deliveries(
        project
    )
    assert project.lines(STOCK) == expected_stock(project)
    assert project.lines(SENSOR) == expected_averages(project)


# --- bounded -----------------------------------------------------------------


def test_a_bounded_run_gives_exactly_the_rows_of_the_samples(project, spark):
    output = project.run()

    assert_all_is_written(project)
    malformed = project.folder / "data/02_intermediate/malformed"
    (kept,) = spark.read.parquet(str(malformed)).collect()
    assert kept.value == "dock,#ERR,line dropped"
    assert kept.file.endswith("/sensor/readings_02.csv")
    assert "it does not fit the schema; what could be understood" in kept.reason
    assert len(project.lines(SENSOR)) > 5, "the samples let some windows close"
    assert "Spark 4.0.0 started, UI at http://127.0.0.1:" in output
    assert "processed.stock: ended, last committed batch: 0" in output
    assert "Traceback" not in output


def test_the_samples_show_a_repeat_a_late_one_and_a_broken_line(project):
    """What the README says of them is true of the files."""
    folder = project.folder / "data/01_raw/stream/sensor"
    rows = [row for file in by_age(folder) for row in csv.DictReader(file.open())]
    readings = [(r["sensor_id"], r["read_at"]) for r in rows]
    averaged = sum(int(line.split(",")[-1]) for line in expected_averages(project))

    assert len(readings) - len(set(readings)) == 1
    assert [r["value"] for r in rows if not re.match(r"-?\d", r["value"])] == ["#ERR"]
    assert [r["value"] for r in rows if r["value"] == "999.0"] == ["999.0"]
    late = [
        t
        for (_, t), (_, before) in zip(readings[1:], readings, strict=False)
        if t < before
    ]
    assert "2026-03-02T08:02:00Z" in late
    assert averaged < len(rows) - 4, "and the newest windows wait"


def test_a_run_started_elsewhere_writes_into_the_project(project, tmp_path):
    """Checkpoints too: Kedro itself makes only filepaths absolute."""
    folder = project.folder / "src" / "cold_store"

    result = project.kedro("run", BOUNDED, "--pipelines=sensor", cwd=folder)

    assert result.returncode == 0, result.stdout + result.stderr
    assert project.commits("processed_sensor")
    assert project.lines(SENSOR) == expected_averages(project)


@pytest.mark.parametrize(
    ("arguments", "checkpoints"),
    [
        (["--tags=inventory"], {"int_new_inventory", "processed_stock"}),
        (
            ["--runner=ThreadRunner"],
            {
                "int_malformed",
                "int_new_inventory",
                "processed_sensor",
                "processed_stock",
            },
        ),
    ],
    ids=["tags", "threads"],
)
def test_parts_of_the_project_can_be_run(project, arguments, checkpoints):
    project.run(*arguments)

    made = {folder.name for folder in (project.folder / "data/04_checkpoint").iterdir()}
    assert made == checkpoints
    assert project.lines(STOCK) == expected_stock(project)


def test_a_run_can_begin_at_a_node_whose_input_is_stored(project):
    project.run("--to-nodes=stamp_processing_time")
    assert project.commits("processed_stock") == 0

    project.run("--from-nodes=count_units_on_shelf")

    assert project.lines(STOCK) == expected_stock(project)


def test_a_stream_may_read_a_folder_by_another_entry(project):
    """Kedro sees no connection between the two, and the order is right all the same."""
    project.edit(
        "conf/base/catalog.yml",
        (
            "processed.stock:  ",
            "the.same.folder:\n"
            "  type: cold_store.extras.datasets.SparkStreamingDataset\n"
            "  file_format: csv\n"
            "  filepath: data/02_intermediate/inventory/\n"
            "  load_args:\n"
            "    schema: sku STRING, new_stock INT, arrived_at TIMESTAMP, name STRING,"
            " aisle STRING, processed_at TIMESTAMP\n"
            "    header: true\n\n"
            "processed.stock:  ",
        ),
    )
    project.edit(
        "src/cold_store/pipelines/inventory/pipeline.py",
        ('inputs="int.new_inventory"', 'inputs="the.same.folder"'),
    )

    project.run("--pipelines=inventory")

    assert project.lines(STOCK) == expected_stock(project)


def test_a_run_without_streams_is_an_ordinary_run(project):
    """No waiting, no signals, no Java: a batch-only selection stays Kedro's own."""
    package = project.folder / "src/cold_store/pipelines/report"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from kedro.pipeline import Node, Pipeline\n\n\n"
        "def create_pipeline():\n"
        "    node = Node(lambda: 'done', inputs=None, outputs='note', name='note')\n"
        "    return Pipeline([node])\n"
    )

    result = project.kedro(
        "run", "--pipelines=report", env={**os.environ, "JAVA_HOME": os.devnull}
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_starting_over_gives_the_same_again(project):
    project.run("--pipelines=inventory")
    for folder in ("02_intermediate", "03_primary", "04_checkpoint"):
        shutil.rmtree(project.folder / "data" / folder)

    project.run("--pipelines=inventory")

    assert project.lines(STOCK) == expected_stock(project)


def test_a_table_is_found_again_by_the_next_run(project):
    """Spark's own catalog forgets tables when it ends; the files stay."""
    entry = "  file_format: csv\n  filepath: data/03_primary/sensor/"
    project.edit(
        "conf/base/catalog.yml", (entry, "  file_format: csv\n  table: averages")
    )
    table = "spark-warehouse/averages/*.csv"

    project.run("--pipelines=sensor")
    first = project.lines(table)
    project.run("--pipelines=sensor")

    assert first == expected_averages(project)
    assert project.lines(table) == first

    reset = project.kedro("streams", "reset", "processed.sensor", "--yes").stdout
    assert "delete spark-warehouse/averages (" in reset
    project.run("--pipelines=sensor")
    assert project.lines(table) == first


def test_it_runs_on_the_newest_spark(pristine, tmp_path):
    """The pin is for the packages; the code itself moves on with Spark."""
    project = pristine.copy(tmp_path)
    project.edit("pyproject.toml", ("pyspark==4.0.0", "pyspark>=4.0.0"))
    project.python = new_environment(tmp_path / "venv", "-e", f"{project.folder}[dev]")
    version = ok(project.python, "-c", "import pyspark; print(pyspark.__version__)")
    assert version.strip() != "4.0.0"
    project.edit("pyproject.toml", ("pyspark>=4.0.0", f"pyspark=={version.strip()}"))
    for file in ("deploy/Dockerfile", "deploy/spark-application.yaml"):
        project.edit(file, ("4.0.0", version.strip()))

    own = ok(project.python, "-m", "pytest", "-q", cwd=project.folder)
    output = project.run()

    assert " passed" in own and "skipped" not in own
    assert f"Spark {version.strip()} started" in output
    assert_all_is_written(project)


def test_the_demo_shows_what_the_streams_wrote(tmp_path):
    """In an environment with the project and what it depends on, nothing more."""
    output = ok(BIN / "python", ROOT / "tools/demo.py", tmp_path, cwd=tmp_path)

    project = Project(tmp_path / "cold-store")
    assert_all_is_written(project)
    for row in project.lines(STOCK):
        sku, name, _, units = row.split(",")
        assert re.search(rf"{sku} +│ {name} *│.*│ {units} ", output), row
    assert "kedro run  " in output, "what to type next"


# --- live --------------------------------------------------------------------


def all_committed(project: Project) -> bool:
    return (
        project.commits("int_new_inventory") > 0
        and project.commits("processed_stock") > 0
        and project.lines(SENSOR) == expected_averages(project)
    )


def test_sigterm_stops_a_live_run_cleanly_and_new_files_were_read(project):
    samples = project.folder / "data/01_raw/stream/inventory"
    with project.live() as run:
        wait_until(lambda: all_committed(project), "all streams' first batches")
        children = run.family
        assert run.jvm()
        part = project.folder / "new.part"
        part.write_text(
            '{"sku": "VEG-01", "new_stock": 5, "arrived_at": "2026-03-03T06:00:00Z"}\n'
        )
        part.rename(samples / "new.json")
        wait_until(
            lambda: project.lines(STOCK) == expected_stock(project), "the new delivery"
        )

        code = run.stop(signal.SIGTERM)

    assert code == 0, run.text
    assert "Traceback" not in run.text and "py4j" not in run.text
    for stream in ("int.new_inventory", "processed.stock", "processed.sensor"):
        assert re.search(rf"{stream}: batch \d+, \d+ rows?", run.text)
        assert re.search(rf"{stream}: ended, last committed batch: \d+", run.text)
    wait_until(lambda: not any(map(is_alive, children)), "the last child's end")
    assert_all_is_written(project)


def test_ctrl_c_in_a_terminal_stops_the_table_and_the_run(project):
    child = project.terminal("--pipelines=sensor")
    try:
        child.expect(
            "stream.*state.*batch.*in/s.*done/s.*took.*behind.*kept.*watermark"
        )
        child.expect(r"processed\.sensor\s+waiting\s+4")
        child.sendintr()
        child.expect(pexpect.EOF)
        seen = child.before
    finally:
        child.close()

    assert child.exitstatus == 0, seen
    assert "last committed batch" in seen
    assert "Traceback" not in seen and "Error" not in seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_ends_the_run_without_an_orphan(project, number):
    with project.live() as run:
        wait_until(run.jvm, "a JVM")
        jvm = run.jvm()
        code = run.stop(number)

    assert code == 0, run.text
    assert "Stopped before any stream was started" in run.text
    assert "Traceback" not in run.text
    assert project.commits("int_new_inventory") == 0
    wait_until(lambda: not any(map(is_alive, jvm)), "the JVM's end")


def test_a_second_ctrl_c_does_not_wait_for_the_batch(project):
    """A stream whose batch would last for ever is given up at once."""
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        (
            "    complete = readings.dropna",
            "    @F.udf('double')\n"
            "    def stuck(value):\n"
            "        import time\n\n"
            "        time.sleep(3600)\n\n"
            "    readings = readings.withColumn('value', stuck('value'))\n"
            "    complete = readings.dropna",
        ),
    )
    project.edit("conf/base/parameters.yml", ("drain: 30 seconds", "drain: 1 hour"))
    offsets = project.folder / "data/04_checkpoint/processed_sensor/offsets/0"
    with project.live() as run:
        wait_until(offsets.exists, "the batch that never ends")
        wait_until(lambda: len(run.started("pyspark.daemon")) > 1, "its worker")
        run.process.send_signal(signal.SIGINT)
        run.says("Stopping")
        code = run.stop(signal.SIGINT)

    assert code == 0, run.text
    assert "processed.sensor: ended, last committed batch: none" in run.text
    assert "Traceback" not in run.text


def test_a_killed_java_is_one_sentence(project):
    with project.live() as run:
        wait_until(lambda: project.commits("int_new_inventory"), "a batch")
        run.jvm()[0].kill()
        code = run.end()

    assert code == 1
    last = run.text.strip().splitlines()[-1]
    assert last.startswith("Error: Spark's Java process has ended: it was killed")
    assert "Traceback" not in run.text


def test_one_failed_stream_ends_the_run_with_its_reason_last(project):
    """The others are stopped; what was committed is kept."""
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        (
            "    complete = readings.dropna",
            "    @F.udf('double')\n"
            "    def poison(value):\n"
            "        raise ValueError('sensor on fire')\n\n"
            "    readings = readings.withColumn('value', poison('value'))\n"
            "    complete = readings.dropna",
        ),
    )

    result = project.kedro("run")

    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-2:]
    assert last[0].startswith(
        "Error: stream processed.sensor failed: ValueError: sensor"
    )
    assert "nodes.py" in last[0] and "in poison" in last[0]
    assert f"full trace is in {project.folder}/logs/spark.log" in last[1]
    assert "sensor on fire" in (project.folder / "logs/spark.log").read_text()
    assert "Traceback" not in result.stdout + result.stderr
    assert project.lines(SENSOR) == []


# --- around a run ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--runner=ParallelRunner"], "ParallelRunner cannot run streams, because"),
        (["--only-missing-outputs"], "--only-missing-outputs cannot be used with"),
        (["--params=streams.until=noon"], "streams.until is 'noon' in the parameters"),
        (["--params=streams.drain=soon"], "streams.drain is 'soon' in the parameters"),
        (["--params=streams.drian=1"], "streams.drian in the parameters is not known"),
    ],
)
def test_what_cannot_work_with_streams_is_answered(project, arguments, sentence):
    result = project.kedro("run", *arguments)

    assert result.returncode == 1
    assert sentence in result.stderr.splitlines()[-1]
    assert not (project.folder / "data/04_checkpoint").exists()


def fake_java(folder: Path, version: str) -> dict[str, str]:
    """Put a Java of another version first."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return {**os.environ, "JAVA_HOME": str(java.parents[1])}


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_392", "8")])
def test_an_old_java_is_one_sentence(project, tmp_path, version, major):
    result = project.kedro("run", env=fake_java(tmp_path, version))

    assert result.returncode == 1
    assert f"is Java {major}; install Java 17" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stdout + result.stderr


def test_a_missing_java_is_one_sentence(project, tmp_path):
    result = project.kedro("run", env={**os.environ, "JAVA_HOME": str(tmp_path)})

    assert result.returncode == 1
    assert "Spark needs Java, and there is none in JAVA_HOME" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_make_says_in_a_sentence_that_java_is_missing(tmp_path):
    for tool in ("python3", "sed", "make", "sh", "test"):
        (tmp_path / tool).symlink_to(ok("which", tool).strip())

    result = subprocess.run(
        ["make", "setup", "CACHE=/nonexistent"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert result.returncode != 0
    assert "Java 17 or newer is needed, and there is none on the PATH" in result.stderr


def test_packages_are_asked_for_only_when_an_entry_needs_them(project):
    """And where nothing can be downloaded, the reason names the package."""
    nowhere = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"
    offline = {**os.environ, "JAVA_TOOL_OPTIONS": nowhere}
    project.edit(
        "conf/base/spark.yml",
        ("spark.ui.port", f"spark.jars.ivy: {project.folder}/ivy\nspark.ui.port"),
    )

    default = project.kedro("run", BOUNDED, "--pipelines=sensor", env=offline)
    assert default.returncode == 0, default.stdout + default.stderr
    assert not (project.folder / "ivy").exists()

    project.edit("conf/base/catalog.yml", ("file_format: json", "file_format: avro"))
    missing = project.kedro("run", "--pipelines=inventory", env=offline)
    assert missing.returncode == 1
    assert "org.apache.spark:spark-avro_2.13:4.0.0" in missing.stderr.splitlines()[-1]
    assert "Traceback" not in missing.stdout + missing.stderr


@pytest.mark.parametrize(
    "command",
    ["registry list", "catalog describe-datasets", "catalog list-patterns", "info"],
)
def test_commands_that_need_no_spark_start_no_java(project, command):
    result = project.kedro(
        *command.split(), env={**os.environ, "JAVA_HOME": os.devnull}
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_notebook_loads_a_stream_and_starts_one(project):
    script = (
        "stream = catalog.load('raw.sensor')\n"
        "assert stream.isStreaming\n"
        "catalog.save('processed.sensor', stream)\n"
        "query = catalog['processed.sensor'].query\n"
        "assert query.isActive and query.name == 'processed.sensor'\n"
        "query.processAllAvailable(); query.stop()\n"
        "print('rows:', catalog['processed.sensor']._data is not None)\n"
    )
    (project.folder / "cell.py").write_text(script)

    output = ok(
        BIN / "ipython",
        *("--ext=kedro.ipython", "--no-banner", "--colors=nocolor", "cell.py"),
        cwd=project.folder,
    )

    assert "rows: True" in output, output
    assert "Error" not in output
    assert project.commits("processed_sensor") > 0


def test_a_packaged_project_runs_from_its_wheel_and_configuration(project, tmp_path):
    ok(*project.command("package"), cwd=project.folder)
    dist = project.folder / "dist"
    wheel, conf = next(dist.glob("*.whl")), next(dist.glob("conf-*.tar.gz"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project.folder / "data").rename(elsewhere / "data")
    ok("uv", "pip", "install", "-q", "--no-deps", "--target", elsewhere / "lib", wheel)

    output = ok(
        project.python,
        *("-m", "cold_store", BOUNDED, f"--conf-source={conf}", "--pipelines=sensor"),
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(elsewhere / "lib")},
    )

    assert "processed.sensor: ended" in output
    assert list(elsewhere.glob(SENSOR))


def test_spark_submit_keeps_its_own_settings_and_names_what_comes_too_late(project):
    (project.folder / "submit.py").write_text(
        "from cold_store.__main__ import main\n"
        f"main(['{BOUNDED}', '--pipelines=sensor'])\n"
    )
    project.edit(
        "conf/base/spark.yml",
        ("spark.ui.port: 0", "spark.driver.memory: 600m\nspark.ui.port: 0"),
    )

    output = ok(
        BIN / "spark-submit",
        *("--master", "local[1]", "--conf", "spark.app.name=submitted", "submit.py"),
        cwd=project.folder,
        env={
            **os.environ,
            "PYTHONPATH": str(project.folder / "src"),
            "PYSPARK_PYTHON": str(project.python),
        },
    )

    assert "no effect: spark.driver.memory. Give them" in output
    assert "processed.sensor: ended" in output
    assert project.lines(SENSOR) == expected_averages(project)


def test_the_ui_and_the_driver_listen_on_this_machine_only(project):
    with project.live() as run:
        run.says("UI at")
        connections = []
        for process in [psutil.Process(run.process.pid), *run.family]:
            with suppress(psutil.NoSuchProcess):  # a small one, which has ended
                connections += process.net_connections("tcp")
        run.stop()

    listening = [c for c in connections if c.status == psutil.CONN_LISTEN]
    addresses = {connection.laddr.ip for connection in listening}
    assert addresses
    assert {a.removeprefix("::ffff:") for a in addresses} == {"127.0.0.1"}


def test_kedro_viz_draws_the_pipelines(project):
    """As a page without a server, which is what can be looked at afterwards."""
    pytest.importorskip(
        "kedro_viz", reason="make test installs it; pip install kedro-viz"
    )

    ok(*project.command("viz", "build"), cwd=project.folder)

    nodes = json.loads((project.folder / "build/api/main").read_text())["nodes"]
    names = {node["name"] for node in nodes}
    assert {"raw.new_inventory", "processed.stock", "average_by_window"} <= names
