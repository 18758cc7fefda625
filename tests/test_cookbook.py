"""The recipes of the cookbook, run from the page itself."""

import dbm
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import servers
import yaml
from conftest import Project, forget_newest_commit, ok

RECIPE = re.compile(
    r"^## (\w+): .*?```yaml\n(.*?)```.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE
)
KAFKA, SINKS = "Messages of Kafka", "Sinks"
LAKES = ("in_delta", "in_iceberg")
TOPICS = ("lines", "orders", "payments", "big_orders", "visits")
HOUR = "2026-03-02T{:02}:{:02}:00Z"


def recipes(project: Project, part: str) -> dict[str, tuple[str, str]]:
    page = (project.folder / "docs/cookbook.md").read_text()
    page = page.partition(f"\n# {part}\n")[2].partition("\n# ")[0]
    found = {name: (entries, code) for name, entries, code in RECIPE.findall(page)}
    assert len(found) == len(re.findall("^## ", page, re.MULTILINE)) > 0
    return found


def add(project: Project, names, part: str = KAFKA, env: str = "kafka") -> None:
    """Paste recipes into the project, as a reader would."""
    catalog = project.folder / f"conf/{env}/catalog.yml"
    for name, (entries, code) in recipes(project, part).items():
        if name in names:
            catalog.write_text(f"{catalog.read_text()}\n{entries}")
            folder = project.folder / f"src/cold_store/pipelines/{name}"
            folder.mkdir()
            (folder / "__init__.py").write_text(code)


@pytest.fixture(scope="module")
def cooked(pristine, tmp_path_factory):
    """A project with all recipes but the last, run over some messages."""
    project = pristine.copy(tmp_path_factory.mktemp("cookbook"))
    names = [name for name in recipes(project, KAFKA) if name != "replay"]
    add(project, names)
    port = servers.free_port()
    project.edit("conf/kafka/globals.yml", ("127.0.0.1:9092", f"127.0.0.1:{port}"))
    with servers.broker_of(project, port) as (kafka, _):
        assert set(TOPICS) <= kafka.topics()
        send_everything(kafka)
        text = project.run("--env=kafka", f"--pipelines={','.join(names)}")
        yield project, kafka, text


def send_everything(kafka: servers.Kafka) -> None:
    orders = [
        ("1", "ICE-01", 3, HOUR.format(8, 5)),
        ("2", "ICE-01", 12, HOUR.format(8, 50)),
        ("3", "FSH-01", 20, HOUR.format(9, 10)),
        ("4", "VEG-01", 1, HOUR.format(14, 0)),
    ]
    payments = [("1", 9.5, HOUR.format(8, 15)), ("2", 7.25, HOUR.format(11, 0))]
    payments.append(("4", 1.0, HOUR.format(14, 5)))
    keys = ("order_id", "sku", "units", "ordered_at")
    kafka.send("lines", b"Peas and more peas", b"and salmon")
    kafka.send("stock", (b"A-1", b'{"sku":"A-1"}'))
    kafka.send("orders", *[as_json(keys, row) for row in orders])
    keys = ("order_id", "amount", "paid_at")
    kafka.send("payments", *[as_json(keys, row) for row in payments])
    kafka.send("visits", b"\x08home\xb4\x01", b"\x08home\x02")


def as_json(keys, row) -> bytes:
    return json.dumps(dict(zip(keys, row, strict=True))).encode()


@pytest.fixture
def rows(cooked, spark):
    """Read what a recipe wrote."""

    def read(name: str, *columns: str):
        path: Path = cooked[0].folder / "data/03_primary" / name
        frame = spark.read.parquet(str(path)).selectExpr(*columns)
        return sorted(map(tuple, frame.collect()))

    return read


def test_words_are_counted_on_the_screen(cooked):
    for word, count in {"peas": 2, "and": 2, "more": 1, "salmon": 1}.items():
        assert re.search(rf"\|{word} *\|{count} *\|", cooked[2]), cooked[2]


def test_messages_are_shown_on_the_screen(cooked):
    assert re.search(r'\|\{"sku":"A-1"\} *\|A-1 *\|', cooked[2]), cooked[2]


def test_the_brokers_own_tool_sends_a_line(cooked):
    project, kafka, _ = cooked
    page = (project.folder / "docs/cookbook.md").read_text()
    command = re.search(r"^echo .*ConsoleProducer.*$", page, re.MULTILINE)[0]
    ok(
        "bash",
        "-c",
        command.replace("127.0.0.1:9092", kafka.address),
        cwd=project.folder,
    )
    assert (None, b"peas and more peas") in kafka.messages("lines")


def test_windows_tumble_and_slide(rows):
    tumbling = rows("totals_by_hour", "sku", "hour(hour.start)", "units")
    assert tumbling == [("FSH-01", 9, 20), ("ICE-01", 8, 15)]
    sliding = rows("totals_of_the_last_hour", "sku", "units")
    assert len(sliding) == 8 + 3  # of each product: four or more windows an hour
    assert ("ICE-01", 15) in sliding


def test_a_stream_is_joined_with_a_table(rows):
    assert rows("order_names", "order_id", "name")[:2] == [
        ("1", "vanilla ice cream"),
        ("2", "vanilla ice cream"),
    ]


def test_streams_are_joined_with_each_other(rows):
    paid = rows("paid_orders", "order_id", "cast(amount as double)")
    assert paid == [("1", 9.5), ("4", 1.0)]
    assert rows("orders_and_payments", "order_id", "cast(amount as string)") == [
        ("1", "9.50"),
        ("2", None),
        ("3", None),
        ("4", "1.00"),
    ]


def test_messages_go_from_topic_to_topic(cooked):
    _, kafka, _ = cooked
    assert sorted(key for key, _ in kafka.messages("big_orders")) == [b"2", b"3"]


def test_avro_becomes_parquet(rows):
    assert rows("long_visits", "page", "seconds") == [("home", 90)]


def test_malformed_messages_are_replayed_as_they_came(cooked, pristine, tmp_path):
    _, kafka, _ = cooked
    project = pristine.copy(tmp_path)
    add(project, ["replay"])
    project.edit("conf/kafka/globals.yml", ("127.0.0.1:9092", kafka.address))
    reading = (b"dock", b'{"sensor_id": "dock", "value": "cold"}')
    kafka.send("readings", reading)
    kafka.send("deliveries", b"?")
    project.run("--env=kafka", "--pipelines=malformed")
    project.run("--env=kafka", "--pipelines=replay")
    assert kafka.messages("readings") == [reading] * 2
    assert kafka.messages("deliveries") == [(None, b"?")] * 2


def test_a_recipe_names_those_whose_entries_it_needs(pristine):
    page = (pristine.folder / "docs/cookbook.md").read_text()
    found = {**recipes(pristine, KAFKA), **recipes(pristine, SINKS)}
    owners = {
        entry: name
        for name, (entries, _) in found.items()
        for entry in re.findall(r"^([\w.]+):", entries, re.MULTILINE)
    }
    for name, (entries, code) in found.items():
        section = page.partition(f"\n## {name}: ")[2].partition("\n## ")[0]
        words = section.replace(entries, "").replace(code, "")
        used = {owners[entry] for entry in owners if f'"{entry}"' in code} - {name}
        assert all(f"`{other}`" in words for other in used), (name, used)


# --- sinks -------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(pristine, request, tmp_path_factory) -> Iterator[Project]:
    """A project with all recipes of sinks that have no fixture of their own."""
    project = pristine.copy(tmp_path_factory.mktemp("sinks"))
    apart = {*LAKES, "tidy_tables", "in_cassandra"}
    try:
        postgres = request.getfixturevalue("postgres")
    except pytest.skip.Exception:  # as its own tests say
        postgres, apart = None, apart | {"in_postgres", "by_jdbc"}
    if postgres:
        credentials = {"warehouse": postgres.credentials}
        file = project.folder / "conf/local/credentials.yml"
        file.write_text(yaml.safe_dump(credentials))
    run_twice(project, [name for name in recipes(project, SINKS) if name not in apart])
    yield project
    if postgres:
        made = "units, spark_batches, deliveries_0, deliveries_1"
        postgres.do(f"DROP TABLE IF EXISTS {made}")


@pytest.fixture(scope="module")
def lakes(pristine, tmp_path_factory) -> Project:
    """A project with the recipes of tables."""
    project = pristine.copy(tmp_path_factory.mktemp("lakes"))
    run_twice(project, LAKES)
    return project


def run_twice(project: Project, names: Iterable[str]) -> None:
    """Run recipes over what is there, and once more over a new file."""
    add(project, names, SINKS, "base")
    pipelines = f"--pipelines={','.join(names)}"
    project.run(pipelines)
    deliver(project, 100, "2026-03-03")
    project.run(pipelines)


def deliver(project: Project, new_stock: int, day: str) -> None:
    """Let ice cream arrive."""
    row = {"sku": "ICE-01", "new_stock": new_stock, "arrived_at": f"{day}T08:00:00Z"}
    new = project.folder / f"data/01_raw/stream/inventory/{day}.json"
    new.write_text(json.dumps(row))


def delivered(project: Project) -> Counter[str]:
    """What was delivered of each product."""
    found: Counter[str] = Counter()
    for file in (project.folder / "data/01_raw/stream/inventory").glob("*.json"):
        for row in map(json.loads, file.read_text().splitlines()):
            found[row["sku"]] += row["new_stock"]
    return found


@pytest.fixture
def units(stored) -> dict[str, int]:
    return delivered(stored)


def test_a_batch_goes_to_several_datasets(stored, spark, units):
    folder = stored.folder / "data/03_primary/delivered_units"
    rows = spark.read.parquet(str(folder)).groupBy("sku").sum("new_stock").collect()
    assert dict(map(tuple, rows)) == units
    newest = stored.folder / "data/08_reporting/newest_deliveries.json"
    assert json.loads(newest.read_text()) == {"sku": "ICE-01", "new_stock": 100}


def test_a_function_and_a_row_writer_are_given_every_batch(stored, units):
    reports = stored.folder / "data/08_reporting"
    assert (reports / "alarms/1.txt").read_text() == "ICE-01: 100 units"
    assert (reports / "alarms/0.txt").exists()
    labels = {}
    for name in {f.name.partition(".")[0] for f in (reports / "labels").iterdir()}:
        with dbm.open(str(reports / "labels" / name)) as found:
            labels[name] = {k.decode(): found[k].decode() for k in found.keys()}
    assert set().union(*labels.values()) == units.keys()
    assert labels["0"]["ICE-01"] == "100", "the newest batch has a single partition"


def test_batches_are_tables_of_a_database(stored, postgres):
    assert postgres.rows("SELECT * FROM deliveries_1") == [("ICE-01", 100)]
    assert postgres.rows("SELECT count(*) > 1 FROM deliveries_0") == [(True,)]


def test_totals_are_in_postgresql(stored, postgres, units):
    rows = postgres.rows("SELECT sku, new_stock FROM units")
    assert dict(rows) == units
    newest = "SELECT (arrived_at AT TIME ZONE 'UTC')::date::text FROM units "
    assert postgres.rows(f"{newest} WHERE sku = 'ICE-01'") == [("2026-03-03",)]


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_totals_are_in_tables(lakes, spark, table):
    assert totals_in(table, lakes, spark) == delivered(lakes)


def totals_in(table: str, project: Project, spark) -> dict[str, int]:
    folder = project.folder / "data/03_primary"
    folder /= "units_in_delta" if table == "delta" else "lake/shop/units"
    rows = spark.read.format(table).load(str(folder)).collect()
    return {row.sku: row.new_stock for row in rows}


def test_tables_are_tidied_by_an_ordinary_pipeline_and_streams_go_on(lakes, spark):
    """No version is a week old here, so the recipe is told to forget them now."""
    add(lakes, ["tidy_tables"], SINKS, "base")
    now = (
        "f\"older_than => TIMESTAMP '{datetime.now(timezone.utc)}', retain_last => 2\""
    )
    lakes.edit(
        "src/cold_store/pipelines/tidy_tables/__init__.py",
        ('f"{older}, retain_last => 10"', now),
        ("{KEEP // timedelta(hours=1)} HOURS", "0 HOURS"),
    )
    unsafe = {"spark.databricks.delta.retentionDurationCheck.enabled": False}
    (lakes.folder / "conf/local/spark.yml").write_text(yaml.safe_dump(unsafe))
    delta = lakes.folder / "data/03_primary/deliveries_in_delta"
    iceberg = str(lakes.folder / "data/03_primary/lake/shop/deliveries")

    def count(what: str = "") -> int:
        return spark.read.format("iceberg").load(f"{iceberg}{what}").count()

    def data_files() -> int:
        return len(list(delta.glob("day=*/*.parquet")))

    before = spark.read.format("delta").load(str(delta)).count()
    files, versions, kept = count("#files"), count("#snapshots"), data_files()

    ok(*lakes.command("run", "--pipelines=tidy_tables"), cwd=lakes.folder)

    assert spark.read.format("delta").load(str(delta)).count() == before
    history = spark.sql(f"DESCRIBE HISTORY delta.`{delta}`").collect()
    done = {row.operation for row in history}
    assert {"OPTIMIZE", "VACUUM END"} <= done and data_files() < kept
    assert count() == before
    assert count("#files") < files and count("#snapshots") == 2 < versions + 1

    deliver(lakes, 1000, "2026-03-04")
    lakes.run(f"--pipelines={','.join(LAKES)}")

    for table in ("delta", "iceberg"):
        assert totals_in(table, lakes, spark) == delivered(lakes)
    ok(
        *lakes.command("streams", "reset", "--yes", "units_in_iceberg"),
        cwd=lakes.folder,
    )
    check = lakes.kedro("streams", "check", "--pipelines=in_iceberg")
    said = " ".join((check.stdout + check.stderr).split())
    assert (
        "units_in_iceberg: begins with the oldest snapshot that deliveries_in" in said
    )


def test_a_replay_into_cassandra_is_harmless(pristine, cassandra, tmp_path):
    project = pristine.copy(tmp_path)
    page = (project.folder / "docs/cookbook.md").read_text()
    cassandra.do(
        *re.findall(r"^CREATE (?:KEYSPACE|TABLE) .*(?=;$)", page, re.MULTILINE)
    )
    add(project, ["in_cassandra"], SINKS, "base")
    project.edit("conf/base/catalog.yml", ("port: 9042", f"port: {cassandra.port}"))
    run = "--pipelines=in_cassandra"
    project.run(run)
    deliveries = cassandra.rows("shop.deliveries", "sku", "new_stock")
    totals = cassandra.rows("shop.units", "sku", "units")
    streams = ("deliveries_in_cassandra", "units_in_cassandra")
    committed = {stream: project.newest(stream) for stream in streams}
    for stream in streams:
        forget_newest_commit(project.checkpoint(stream))
        assert project.newest(stream) < committed[stream]

    project.run(run)

    assert {stream: project.newest(stream) for stream in streams} == committed
    assert dict(totals) == delivered(project)
    assert cassandra.rows("shop.deliveries", "sku", "new_stock") == deliveries
    assert cassandra.rows("shop.units", "sku", "units") == totals
