"""Runs of the generated project with a real broker."""

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

import pyspark
import pytest
import yaml
from chaos import committed_files
from conftest import (
    DEADLINE,
    LiveRun,
    Project,
    new_environment,
    ok,
    sh,
    wait_until,
)
from servers import PASSWORD, Kafka, broker_of, free_port
from shell import fetch
from test_runs import (
    expected_averages,
    expected_deliveries,
    expected_stock,
    without_processing_time,
)

TOPICS = ("deliveries", "stock", "readings", "sensor_windows")
CATALOG = "conf/kafka/catalog.yml"
INVENTORY = "data/02_intermediate/kafka/inventory"
SENSOR = ("--env=kafka", "--pipelines=sensor")
ALONE = ("--env=kafka", "--nodes=describe_deliveries,stamp_processing_time")


def prepare(project: Project, kafka: Kafka) -> dict[str, str]:
    """Point the environment at a broker, with topics that no other test uses."""
    mark = time.time_ns()
    names = {topic: f"{topic}-{mark}" for topic in TOPICS}
    project.edit("conf/kafka/globals.yml", ("127.0.0.1:9092", kafka.address))
    project.edit(
        CATALOG,
        *[
            (f"subscribe: {t}\n", f"subscribe: {n}\n")
            for t, n in names.items()
            if t[0] in "dr"
        ],
        *[(f"topic: {t}\n", f"topic: {n}\n") for t, n in names.items() if t[0] == "s"],
    )
    for name in names.values():
        kafka.topic(name)
    return names


@pytest.fixture
def topics(project, kafka):
    return prepare(project, kafka)


def delivery(number: int) -> bytes:
    row = {"sku": f"S-{number}", "new_stock": 1, "arrived_at": "2026-03-02T06:00:00Z"}
    return json.dumps(row).encode()


def committed_skus(project: Project) -> list[str]:
    folder = project.folder / INVENTORY
    if not (folder / "_spark_metadata").exists():
        return []
    lines = [
        line
        for path in committed_files(folder)
        for line in open(path).read().splitlines()[1:]
    ]
    return sorted(line.partition(",")[0] for line in lines)


def await_in(run: LiveRun, condition: Callable[[], object], what: str) -> None:
    """Wait for something that a run brings about, and fail at once if the run ends."""
    wait_until(lambda: condition() or run.process.poll() is not None, what)
    assert run.process.poll() is None, run.text


def newest_by_key(kafka: Kafka, topic: str) -> list[dict]:
    return [json.loads(v) for v in dict(kafka.messages(topic)).values()]


# --- the environment ---------------------------------------------------------


def windows_in(kafka: Kafka, topic: str) -> list[dict]:
    return [json.loads(value) for _, value in kafka.messages(topic)]


def test_topics_give_the_rows_that_files_give(project, kafka, topics, spark):
    sent = ok(
        *project.command("streams", "feed", "--env=kafka", "--rate=100"),
        cwd=project.folder,
    )
    assert "raw.sensor: 22 of 22 rows sent" in sent
    text = project.run("--env=kafka")

    found = without_processing_time(project.lines(f"{INVENTORY}/*.csv"))
    assert found == expected_deliveries(project)
    stock = [
        f"{row['sku']},{row.get('name', '')},{row.get('aisle', '')},{row['units']}"
        for row in newest_by_key(kafka, topics["stock"])
    ]
    assert sorted(stock) == expected_stock(project)
    windows = [
        f"{row['sensor_id']},{_millis(row['window_start'])},"
        f"{_millis(row['window_end'])},{row['mean_value']},{row['readings']}"
        for row in windows_in(kafka, topics["sensor_windows"])
    ]
    assert sorted(windows) == expected_averages(project)

    assert "1 malformed messages left out so far" in " ".join(text.split())
    malformed = project.folder / "data/02_intermediate/kafka/malformed"
    (kept,) = spark.read.parquet(str(malformed)).collect()
    assert kept.value == b"dock,#ERR,line dropped" and kept.topic == topics["readings"]
    assert (kept.partition, kept.key) == (0, None) and kept.offset >= 0
    assert "it is not json of the schema" in kept.reason
    status = project.kedro("streams", "status", "--env=kafka").stdout
    assert "1 messages left out since its run began" in status
    read = r"kafka READINGS at READINGS 0:\d+.*, 0 behind after the last batch"
    assert re.search(read.replace("READINGS", topics["readings"]), status)
    check = project.kedro("streams", "check", "--env=kafka")
    assert check.returncode == 0, check.stdout


def _millis(text: str) -> str:
    return text.replace("000Z", "Z")


def test_avro_messages_give_the_same_averages(project, kafka, topics):
    project.edit(
        CATALOG, ("json\n    schema: sensor_id", "avro\n    schema: sensor_id")
    )
    ok(
        *project.command("streams", "feed", "--env=kafka", "--rate=100"),
        cwd=project.folder,
    )
    project.run(*SENSOR)
    means = [row["mean_value"] for row in windows_in(kafka, topics["sensor_windows"])]
    expected = [float(line.split(",")[3]) for line in expected_averages(project)]
    assert sorted(means) == sorted(expected)


@pytest.mark.parametrize("required", [" NOT NULL", ""], ids=["NOT NULL", "nullable"])
def test_a_malformed_message_ends_a_stream_that_is_to_fail_without_a_retry(
    project, kafka, topics, required
):
    project.edit(
        CATALOG, ("malformed: keep", "malformed: fail"), (" NOT NULL", required)
    )
    kafka.send(topics["readings"], reading(0), b"?")
    result = project.kedro("run", *SENSOR)
    assert result.returncode == 1
    assert f"message 1 of partition 0 of topic {topics['readings']}" in result.stderr
    assert "restart 1 of 3" not in result.stdout + result.stderr


def test_what_a_broker_has_not_is_said_before_any_stream_starts(project, kafka, topics):
    kafka.delete(topics["readings"])
    wait_until(lambda: topics["readings"] not in kafka.topics(), "the end of the topic")
    result = project.kedro("run", "--env=kafka")
    assert result.returncode == 1
    assert f"has no topic {topics['readings']}; create it" in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert not (project.folder / "data/04_checkpoint").exists()


OTHER = "  payload: {format: json, schema: sensor_id STRING}\n"


@pytest.mark.parametrize("lacking", ["entry", "node", "equal payload"])
def test_keep_without_anybody_who_stores_is_refused(project, lacking):
    if lacking == "entry":
        project.edit(CATALOG, ("raw.sensor_malformed:", "_nothing:"))
    elif lacking == "node":
        shutil.rmtree(project.folder / "src/cold_store/pipelines/malformed")
    else:
        project.edit(CATALOG, ("  <<: *readings\n", f"  <<: *readings\n{OTHER}"))
    result = project.kedro("run", *SENSOR)
    assert result.returncode == 1
    assert "raw.sensor: payload.malformed is keep, and no node reads" in result.stderr


def test_a_feed_that_cannot_tell_its_topic_sends_nothing(project):
    project.edit(
        CATALOG,
        ("subscribe: deliveries\n", "subscribe: deliveries,returns\n"),
        ("subscribe: readings\n", "subscribePattern: readings.*\n"),
    )
    result = project.kedro("streams", "feed", "--env=kafka")
    assert result.returncode == 1 and "sent" not in result.stdout
    for place in ("deliveries,returns", "readings.*"):
        assert f"which topic of kafka {place} to send to; name one" in result.stderr


# --- a broker of one's own ---------------------------------------------------


def test_the_local_broker_makes_topics_keeps_messages_and_ends_with_ctrl_c(
    pristine, tmp_path
):
    project = pristine.copy(tmp_path / "kühl")  # a path that Java could misread
    port = free_port()
    with broker_of(project, port) as (kafka, process):
        assert set(TOPICS) <= kafka.topics()
        kafka.send("deliveries", b"1")
        second = project.kedro("streams", "broker", f"--port={port}")
        assert second.returncode == 1
        assert "something listens at" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    with broker_of(project, port) as (kafka, _):
        assert kafka.messages("deliveries") == [(None, b"1")]


def test_a_new_users_environment_is_told_the_extra_and_then_has_a_broker(
    project, tmp_path
):
    project.python = new_environment(tmp_path / "venv", "-e", project.folder)
    port = free_port()
    missing = project.kedro("streams", "broker", f"--port={port}")
    assert missing.returncode == 1
    assert 'type pip install -e ".[kafka]"' in missing.stderr
    extra = f"{project.folder}[kafka]"
    ok("uv", "pip", "install", "-q", "--python", project.python, "-e", extra)
    with broker_of(project, port) as (kafka, _):
        assert set(TOPICS) <= kafka.topics()


def test_a_feed_drops_files_too(project):
    folder = project.folder / "data/01_raw/stream/sensor"
    before = set(folder.iterdir())
    ok(*project.command("streams", "feed", "--rate=10", "--now"), cwd=project.folder)
    new = set(folder.iterdir()) - before
    assert len(new) == 3
    times = [re.findall(r"\d{4}-\d\d-\d\dT[\d:.]+", f.read_text()) for f in new]
    ago = datetime.utcnow() - datetime.fromisoformat(max(max(t) for t in times if t))
    assert timedelta(0) < ago < timedelta(hours=1)
    project.run("--pipelines=inventory")
    doubled = expected_deliveries(project)
    found = without_processing_time(
        project.lines("data/02_intermediate/inventory/*.csv")
    )
    assert len(found) == len(doubled) == 18


def test_the_compose_file_is_understood(project):
    ways = [["docker", "compose"], ["docker-compose"]]
    there = [way for way in ways if shutil.which(way[0])]
    working = [way for way in there if sh(*way, "version").returncode == 0]
    if not working:
        pytest.skip("docker compose is not installed")
    command = (*working[0], "-f", "compose.yml", "config", "--services")
    services = ok(*command, cwd=project.folder)
    assert sorted(services.split()) == ["kafka", "registry", "topics", "ui"]


# --- stopping ----------------------------------------------------------------

RATE = """
numbers:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: rate
  load_args: {{rowsPerSecond: 500}}

sent_numbers:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: kafka
  payload: {{format: json}}
  save_args:
    kafka.bootstrap.servers: {address}
    topic: {topic}
    checkpoint: data/04_checkpoint/numbers
"""
PASS_ON = """
from kedro.pipeline import Node, Pipeline


def pass_on(numbers):
    return numbers.select("value")


def create_pipeline():
    return Pipeline([Node(pass_on, "numbers", "sent_numbers", name="pass_on")])
"""


def test_a_stop_in_the_middle_of_constant_input_sends_nothing_twice(
    project, kafka, topics
):
    catalog = project.folder / CATALOG
    entries = RATE.format(address=kafka.address, topic=topics["stock"])
    catalog.write_text(catalog.read_text() + entries)
    folder = project.folder / "src/cold_store/pipelines/numbers"
    folder.mkdir()
    (folder / "__init__.py").write_text(PASS_ON)
    for _ in range(2):
        goal = project.commits("numbers") + 3
        with project.live("--env=kafka", "--pipelines=numbers") as run:
            wait_until(
                lambda goal=goal: (
                    project.commits("numbers") >= goal or run.process.poll() is not None
                ),
                "some batches",
            )
            assert run.stop() == 0, run.text
        assert "Traceback" not in run.text
    values = [json.loads(v)["value"] for _, v in kafka.messages(topics["stock"])]
    assert len(values) > 500
    assert sorted(values) == list(range(len(values)))


# --- secrets -----------------------------------------------------------------

KEY = "-----BEGIN PRIVATE KEY----- not-for-your-eyes -----END PRIVATE KEY-----"


def with_credentials(project: Project, secrets: dict[str, str]) -> None:
    text = yaml.safe_dump({"kafka_user": {**secrets, "kafka.ssl.keystore.key": KEY}})
    (project.folder / "conf/kafka/credentials.yml").write_text(text)
    project.edit(
        CATALOG,
        ("file_format: kafka\n", "file_format: kafka\n  credentials: kafka_user\n"),
    )


def test_a_password_is_nowhere_to_be_seen(project, secured):
    broker = secured.client()
    topics = prepare(project, broker)
    with_credentials(project, secured.by_password("SCRAM-SHA-256"))
    events = project.folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": False,
    }
    (project.folder / "conf/kafka/spark.yml").write_text(yaml.safe_dump(settings))
    broker.send(topics["readings"], *map(reading, range(60)))
    with project.live(*SENSOR) as run:
        wait_until(
            lambda: broker.messages(topics["sensor_windows"]) or run.process.poll(),
            "windows",
        )
        assert run.process.poll() is None, run.text
        ui = re.search(r"UI at (http://\S+)", run.text)[1]
        pages = [fetch(f"{ui}/{page}") for page in ("environment/", "SQL/")]
        (app,) = json.loads(fetch(f"{ui}/api/v1/applications"))
        rest = f"{ui}/api/v1/applications/{app['id']}"
        pages += [fetch(f"{rest}/{p}") for p in ("environment", "sql?details=true")]
        assert run.stop() == 0, run.text
    assert "spark.app.name" in pages[0] and "kafka" in pages[3].lower()
    logs = [f.read_text() for f in events.rglob("*") if f.is_file()]
    assert "StreamingQuery" in "".join(logs)
    seen = "".join([*pages, *logs, run.text])
    seen += (project.folder / "logs/spark.log").read_text()
    seen += project.kedro("streams", "check", "--env=kafka").stdout
    for secret in (PASSWORD, "not-for-your-eyes"):
        assert secret not in seen


def test_a_wrong_password_an_unknown_authority_and_silence_end_the_run_in_a_sentence(
    project, secured
):
    prepare(project, secured.client())
    with_credentials(project, secured.by_password("PLAIN", "wrong-horse"))
    others = {
        "stranger": secured.by_certificate("other-ca.pem"),
        "silent": {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}"},
    }
    with (project.folder / "conf/kafka/credentials.yml").open("a") as file:
        yaml.safe_dump(others, file)
    sink = "kafka_user\n  payload:\n    format: json\n    key: "
    project.edit(
        CATALOG,
        (f"{sink}sensor_id", f"{sink}sensor_id".replace("kafka_user", "stranger")),
        (f"{sink}sku", f"{sink}sku".replace("kafka_user", "silent")),
    )
    result = project.kedro("run", "--env=kafka")
    assert result.returncode == 1
    assert "Error: 3 problems" in result.stderr
    assert "does not accept user and password; correct" in result.stderr
    assert "processed.sensor: broker 127.0.0.1" in result.stderr
    assert "is not trusted, or does not trust us; correct" in result.stderr
    assert "processed.stock: broker 127.0.0.1" in result.stderr
    assert "does not answer; start it" in result.stderr
    assert not (project.folder / "data/04_checkpoint").exists()
    log = (project.folder / "logs/spark.log").read_text()
    seen = result.stderr + result.stdout + log
    assert "Traceback" not in result.stderr + result.stdout
    assert "wrong-horse" not in seen and "not-for-your-eyes" not in seen


# --- packages ----------------------------------------------------------------

NOWHERE = """
<ivysettings>
  <settings defaultResolver="nowhere"/>
  <resolvers>
    <ibiblio name="nowhere" m2compatible="true" root="http://127.0.0.1:{port}/"/>
  </resolvers>
</ivysettings>
"""


def test_a_repository_that_cannot_be_reached_is_said_so_with_the_ways_around(project):
    file = project.folder / "ivysettings.xml"
    file.write_text(NOWHERE.format(port=free_port()))
    settings = {
        "spark.jars.ivySettings": str(file),
        "spark.jars.ivy": str(project.folder / "ivy"),
    }
    (project.folder / "conf/kafka/spark.yml").write_text(yaml.safe_dump(settings))
    result = project.kedro("run", *SENSOR)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr + result.stdout
    logged = " ".join(result.stdout.split())
    kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert f"Downloading {kafka}" in logged and "takes a minute, once" in logged
    for word in (kafka, "spark.jars.ivySettings", "copy", "spark.jars,"):
        assert word in result.stderr
    broker = project.kedro("streams", "broker", f"--port={free_port()}")
    assert broker.returncode == 1
    assert "could not be downloaded" in broker.stderr
    assert "name a mirror in a file of Ivy's settings" in broker.stderr


# --- faults ------------------------------------------------------------------


def test_kills_between_topic_and_files_lose_nothing_and_double_nothing(
    project, kafka, topics, spark
):
    project.edit(
        CATALOG,
        ("file_format: csv", "file_format: parquet"),
        ("trigger: 2 seconds", "trigger: 100 milliseconds"),
        (
            "    subscribe: deliveries",
            "    maxOffsetsPerTrigger: 20\n    subscribe: deliveries",
        ),
    )
    sent = 0
    for _ in range(3):
        kafka.send(topics["deliveries"], *map(delivery, range(sent, sent + 200)))
        sent += 200
        goal = project.commits("kafka/int_new_inventory") + 3
        with project.live(*ALONE) as run:
            wait_until(
                lambda goal=goal: (
                    project.commits("kafka/int_new_inventory") >= goal
                    or run.process.poll() is not None
                ),
                "some batches",
            )
            assert run.process.poll() is None, run.text
            run.kill()
    project.run(*ALONE)
    rows = spark.read.parquet(str(project.folder / INVENTORY)).collect()
    assert sorted(row.sku for row in rows) == sorted(f"S-{n}" for n in range(sent))


def test_partitions_that_are_added_are_read_until_the_topic_is_deleted(
    project, kafka, topics
):
    topic = topics["deliveries"]
    kafka.send(topic, delivery(1))
    with project.live(*ALONE, "--params=streams.restart.attempts=0") as run:
        wait_until(lambda: committed_skus(project) == ["S-1"], "the first delivery")
        kafka.grow(topic, 3)
        wait_until(lambda: kafka.partitions(topic) == 3, "the new partitions")
        kafka.send(topic, delivery(2), partition=2)
        wait_until(lambda: committed_skus(project) == ["S-1", "S-2"], "the second one")
        kafka.delete(topic)
        assert run.end() == 1, run.text
    assert "failOnDataLoss" in run.text and "kedro streams reset" in run.text


def test_a_broker_that_is_away_for_half_a_minute_costs_no_message(project):
    project.edit(
        CATALOG,
        ("maxOffsetsPerTrigger: 6 ", "maxOffsetsPerTrigger: 60 "),
        # With something to send while there is nobody to send it to.
        ("processed_stock\n    trigger: 2", "processed_stock\n    trigger: 10"),
    )
    port = free_port()
    with ExitStack() as stack:
        with broker_of(project, port) as (kafka, _):
            topics = prepare(project, kafka)
            kafka.send(topics["deliveries"], delivery(1))
            kafka.send(topics["readings"], *map(reading, range(60)))
            run = stack.enter_context(project.live("--env=kafka"))
            await_in(
                run, lambda: newest_by_key(kafka, topics["stock"]), "the first stock"
            )
            await_in(run, lambda: kafka.messages(topics["sensor_windows"]), "windows")
            kafka.send(topics["deliveries"], delivery(2))
            await_in(run, lambda: committed_skus(project) == ["S-1", "S-2"], "S-2")
        gone = time.monotonic()
        await_in(run, lambda: time.monotonic() > gone + 30, "half a minute")
        with broker_of(project, port) as (kafka, _):
            kafka.send(topics["deliveries"], delivery(3))
            kafka.send(topics["readings"], *map(reading, range(60, 120)))
            skus = {"S-1", "S-2", "S-3"}
            await_in(
                run,
                lambda: (
                    {r["sku"] for r in newest_by_key(kafka, topics["stock"])} == skus
                ),
                "all stock",
            )
            closed = set(map(minute, range(117)))  # the newest wait for late readings
            await_in(
                run,
                lambda: (
                    {
                        row["window_start"][:16]
                        for row in windows_in(kafka, topics["sensor_windows"])
                    }
                    == closed
                ),
                "all windows",
            )
            assert run.stop() == 0, run.text
    assert committed_skus(project) == sorted(skus)


def test_messages_that_are_too_old_end_the_stream_and_can_be_skipped(
    project, kafka, topics
):
    topic = topics["deliveries"]
    kafka.send(topic, *map(delivery, range(3)))
    project.run(*ALONE)
    kafka.send(topic, *map(delivery, range(3, 9)))
    kafka.forget(topic, before=6)
    assert "set failOnDataLoss: false in load_args" in refused_for_lost_messages(
        project
    )
    project.edit(
        CATALOG,
        (
            f"    subscribe: {topic}",
            f"    failOnDataLoss: false\n    subscribe: {topic}",
        ),
    )
    project.run(*ALONE)
    assert committed_skus(project) == [f"S-{n}" for n in (0, 1, 2, 6, 7, 8)]


def test_a_topic_that_was_made_anew_wants_a_new_start(project, kafka, topics):
    topic = topics["deliveries"]
    kafka.send(topic, *map(delivery, range(10)))
    project.run(*ALONE)
    kafka.delete(topic)
    wait_until(lambda: topic not in kafka.topics(), "the end of the topic")
    kafka.topic(topic)
    kafka.send(topic, delivery(99))
    assert "kedro streams reset" in refused_for_lost_messages(project)
    reset = ("streams", "reset", "int.new_inventory", "--env=kafka", "--yes")
    ok(*project.command(*reset), cwd=project.folder)
    project.run(*ALONE)
    assert committed_skus(project) == ["S-99"]


def refused_for_lost_messages(project: Project) -> str:
    result = project.kedro("run", "--params=streams.until=caught_up", *ALONE)
    assert result.returncode == 1
    return result.stderr


# --- at least once -----------------------------------------------------------


def minute(number: int) -> str:
    return f"2026-03-02T{8 + number // 12:02}:{number % 12 * 5:02}"


def reading(number: int) -> bytes:
    row = {"sensor_id": "dock", "value": 4.0, "read_at": f"{minute(number)}:00Z"}
    return json.dumps(row).encode()


TWO_WAYS = """
orders:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: kafka
  load_args:
    kafka.bootstrap.servers: {address}
    subscribe: {orders}
    startingOffsets: earliest
    minOffsetsPerTrigger: 6
  payload: {{format: json, schema: "sku STRING, units INT, at TIMESTAMP"}}

by_key:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: kafka
  payload: {{format: json, key: sku}}
  save_args:
    kafka.bootstrap.servers: {address}
    topic: {by_key}
    checkpoint: data/04_checkpoint/by_key

in_any_order:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: kafka
  payload: {{format: json}}
  save_args:
    kafka.bootstrap.servers: {address}
    topic: {in_any_order}
    checkpoint: data/04_checkpoint/in_any_order
"""
GATED = """
import time
from pathlib import Path

from kedro.pipeline import Node, Pipeline
from pyspark.sql.functions import udf


def pass_on(orders):
    @udf("int")
    def passed(units):
        while units < 0 and not Path({gate!r}).exists():
            time.sleep(0.1)
        return units

    return orders.withColumn("units", passed("units"))


def create_pipeline():
    names = ("by_key", "in_any_order")
    return Pipeline([Node(pass_on, "orders", name, name=name) for name in names])
"""
ORDER = "sku STRING, units INT, at TIMESTAMP"
COMPACT = {  # as soon as it can be
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
}


def order(number: int, units: int) -> bytes:
    row = {"sku": f"S-{number}", "units": units, "at": "2026-03-02T06:00:00Z"}
    return json.dumps(row).encode()


def test_a_kill_in_the_middle_of_a_batch_is_harmless_by_a_key_or_by_deduplication(
    project, kafka, spark, code
):
    names = ("orders", "by_key", "in_any_order")
    topics = {name: f"{name}-{time.time_ns()}" for name in names}
    kafka.topic(topics["orders"], partitions=2)
    kafka.topic(topics["by_key"], **COMPACT)
    kafka.topic(topics["in_any_order"])
    catalog = project.folder / CATALOG
    entries = TWO_WAYS.format(address=kafka.address, **topics)
    catalog.write_text(catalog.read_text() + entries)
    spark_yml = project.folder / "conf/kafka/spark.yml"
    spark_yml.write_text("spark.master: local[4]")  # each stream's half waits on a core
    gate = project.folder / "gate"
    folder = project.folder / "src/cold_store/pipelines/orders"
    folder.mkdir()
    (folder / "__init__.py").write_text(GATED.format(gate=str(gate)))
    both = names[1:]

    def sent(name: str) -> list[dict]:
        return [json.loads(value) for _, value in kafka.messages(topics[name])]

    kafka.send(topics["orders"], *[order(n, 1) for n in range(6)], partition=0)
    with project.live("--env=kafka", "--pipelines=orders") as run:
        await_in(run, lambda: all(map(project.commits, both)), "the first batches")
        kafka.send(topics["orders"], *[order(n, 2) for n in range(5)], partition=0)
        kafka.send(topics["orders"], order(5, -1), partition=1)
        await_in(
            run,
            lambda: all(
                [row["units"] for row in sent(name)].count(2) == 5
                and project.newest(name, "offsets") + 1 > project.commits(name)
                for name in both
            ),
            "half of a batch",
        )
        run.kill()
    gate.touch()
    project.run("--env=kafka", "--pipelines=orders")

    whole = {**{f"S-{n}": 2 for n in range(5)}, "S-5": -1}
    for name in both:
        newest = kafka.raw_messages(topics[name])[-1]
        assert newest.offset() + 1 > 12  # messages of the killed batch came twice

    kafka.send(topics["by_key"], (b"last", b'{"sku": "last", "units": 0}'))
    wait_until(lambda: len(sent("by_key")) == 7, "a topic with each key once")
    kept = {row["sku"]: row["units"] for row in sent("by_key")}
    assert kept == {**whole, "last": 0}

    reader = code.datasets.SparkStreamingDataset(
        file_format="kafka",
        load_args={
            **kafka.options,
            "subscribe": topics["in_any_order"],
            "startingOffsets": "earliest",
        },
        payload={"format": "json", "schema": ORDER},
    )
    once = reader.load().withWatermark("at", "1 day")
    sink = code.datasets.SparkStreamingDataset(
        name="once",
        file_format="memory",
        save_args={"trigger": "available_now"},
    )
    sink.save(once.dropDuplicatesWithinWatermark(["sku", "units"]))
    sink.query.awaitTermination()
    rows = [(row.sku, row.units) for row in spark.table("once").collect()]
    assert sorted(rows) == sorted([*[(f"S-{n}", 1) for n in range(6)], *whole.items()])
