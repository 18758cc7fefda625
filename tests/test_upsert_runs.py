"""Runs of the generated project that upsert into a real PostgreSQL."""

import json
import re
from collections import Counter
from contextlib import closing

import pytest
import yaml
from conftest import Project, wait_until
from databases import PASSWORD
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from shell import fetch

PIPELINE = """
from kedro.pipeline import Node, Pipeline


def take(deliveries):
    return deliveries


def create_pipeline():
    return Pipeline([Node(take, "deliveries", "ledger", name="take")])
"""
CATALOG = """
deliveries:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: json
  filepath: data/01_raw/deliveries
  load_args: {schema: "sku STRING, units INT", maxFilesPerTrigger: 1}

ledger:
  type: cold_store.extras.datasets.MicroBatchDataset
  datasets:
    - type: cold_store.extras.datasets.UpsertDataset
      file_format: postgresql
      table: ledger
      keys: [sku]
      add: [units]
      create: true
      credentials: warehouse
  save_args: {checkpoint: data/04_checkpoint/ledger}
"""
TABLE = {
    "type": "cold_store.extras.datasets.UpsertDataset",
    "file_format": "postgresql",
    "keys": ["sku"],
    "create": True,
    "credentials": "warehouse",
}
RUN = "--pipelines=ledger"


@pytest.fixture
def ledger(project, postgres):
    """A project with a stream of deliveries that are added up in PostgreSQL."""
    package = project.folder / "src/cold_store/pipelines/ledger"
    package.mkdir()
    (package / "__init__.py").write_text(PIPELINE)
    catalog = project.folder / "conf/base/catalog.yml"
    catalog.write_text(catalog.read_text() + CATALOG)
    credentials = yaml.safe_dump({"warehouse": postgres.credentials})
    (project.folder / "conf/local/credentials.yml").write_text(credentials)
    (project.folder / "data/01_raw/deliveries").mkdir()
    project.edit(
        "conf/base/parameters.yml", ("backoff: 5 seconds", "backoff: 1 second")
    )
    yield project
    postgres.do("DROP TABLE IF EXISTS ledger, spark_batches")


class Deliveries:
    """What was delivered, and so what must be in the table."""

    def __init__(self, project: Project) -> None:
        self._folder = project.folder / "data/01_raw/deliveries"
        self.units: Counter[str] = Counter()

    @property
    def files(self) -> int:
        return len(list(self._folder.iterdir()))

    def send(self, files: int) -> None:
        for _ in range(files):
            number = self.files
            rows = [{"sku": f"S{number % 3}", "units": n} for n in range(1, 4)]
            for row in rows:
                self.units[row["sku"]] += row["units"]
            file = self._folder / f".{number}"
            file.write_text("\n".join(map(json.dumps, rows)))
            file.rename(self._folder / f"{number}.json")


def in_table(postgres) -> dict[str, int]:
    if postgres.rows("SELECT to_regclass('ledger')") == [(None,)]:
        return {}
    return dict(postgres.rows("SELECT sku, units FROM ledger"))


def tables(postgres) -> list[str]:
    """Return the table, and with it whatever batches have left beside it."""
    found = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'ledger%'"
    return [name for (name,) in postgres.rows(found)]


def test_kills_and_a_restart_of_the_server_lose_nothing_and_double_nothing(
    ledger, postgres
):
    ledger.edit("conf/base/parameters.yml", ("attempts: 3", "attempts: 1000"))
    deliveries = Deliveries(ledger)
    deliveries.send(6)
    with ledger.live(RUN) as run:
        wait_until(lambda: in_table(postgres), "rows in the table")
        run.kill()

    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    stages = "FROM pg_class WHERE relname LIKE 'ledger\\_\\_%'"
    kept = f"SELECT relpersistence::text {stages}"
    deliveries.send(2)
    with ledger.live(RUN) as run, postgres.connect() as other:
        other.execute("LOCK TABLE ledger IN EXCLUSIVE MODE")
        wait_until(lambda: postgres.rows(waiting), "a batch that waits to be merged")
        run.kill()

    with ledger.live(RUN) as run:
        wait_until(lambda: in_table(postgres) == deliveries.units, "all rows")
        with closing(postgres.connect()) as other:
            other.execute("LOCK TABLE ledger IN EXCLUSIVE MODE")
            deliveries.send(3)
            wait_until(lambda: postgres.rows(waiting), "a batch that is staged")
            assert set(postgres.rows(kept)) == {("p",)}  # a restart does not empty it
            postgres.stop()
        run.says("ledger failed, restart 1 of 1000")
        postgres.start()
        wait_until(lambda: in_table(postgres) == deliveries.units, "all rows again")
        assert run.stop() == 0, run.text
        trace = (ledger.folder / "logs/spark.log").read_text()
        assert "psycopg" in trace and PASSWORD not in run.text + trace

    assert in_table(postgres) == deliveries.units
    assert tables(postgres) == ["ledger"]


GATE = '''
"""A dataset that lets a batch wait while its gate is closed."""

import time
from pathlib import Path

from kedro.io import AbstractDataset


class Gate(AbstractDataset):
    def __init__(self, *, filepath):
        self._closed = Path(filepath)

    def load(self):
        return None

    def save(self, batch):
        while self._closed.exists():
            self._closed.with_name("waiting").touch()
            time.sleep(0.05)

    def _describe(self):
        return {}
'''


@pytest.mark.parametrize(
    "place",
    [
        {"file_format": "postgresql", "table": "ledger", "credentials": "warehouse"},
        {"file_format": "delta", "table": "ledger"},
        {"file_format": "iceberg", "table": "lake.shop.ledger"},
    ],
    ids=lambda place: place["file_format"],
)
def test_a_kill_when_the_table_has_a_batch_and_spark_does_not_know_doubles_nothing(
    ledger, postgres, spark, place
):
    (ledger.folder / "src/cold_store/gate.py").write_text(GATE)
    gate = ledger.folder / "data/gate"
    upsert = {**TABLE, "add": ["units"], **place}
    if "credentials" not in place:
        del upsert["credentials"]
    gated = {"type": "cold_store.gate.Gate", "filepath": str(gate / "closed")}
    catalog = yaml.safe_load(CATALOG)
    catalog["ledger"]["datasets"] = [upsert, gated]
    text = (ledger.folder / "conf/base/catalog.yml").read_text()
    text = text.replace(CATALOG, yaml.safe_dump(catalog))
    (ledger.folder / "conf/base/catalog.yml").write_text(text)

    def totals() -> dict[str, int]:
        if place["file_format"] == "postgresql":
            return in_table(postgres)
        folder = "spark-warehouse/ledger"
        if place["file_format"] == "iceberg":
            folder = "data/03_primary/lake/shop/ledger"
        reader = spark.read.format(place["file_format"])
        return dict(map(tuple, reader.load(str(ledger.folder / folder)).collect()))

    deliveries = Deliveries(ledger)
    deliveries.send(2)
    ledger.run(RUN)
    assert totals() == deliveries.units
    gate.mkdir()
    (gate / "closed").touch()
    deliveries.send(1)
    with ledger.live(RUN) as run:
        wait_until(lambda: (gate / "waiting").exists(), "a batch that is merged")
        assert totals() == deliveries.units
        assert ledger.newest("ledger") < ledger.newest("ledger", "offsets")
        run.kill()
    (gate / "closed").unlink()
    deliveries.send(1)

    ledger.run(RUN)

    assert ledger.newest("ledger") == ledger.newest("ledger", "offsets")
    assert totals() == deliveries.units


def test_the_password_is_nowhere_to_be_seen(ledger, postgres):
    events = ledger.folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": False,
    }
    (ledger.folder / "conf/local/spark.yml").write_text(yaml.safe_dump(settings))
    deliveries = Deliveries(ledger)
    deliveries.send(2)

    with ledger.live(RUN) as run:
        wait_until(lambda: in_table(postgres) == deliveries.units, "all rows")
        ui = re.search(r"UI at (http://\S+)", run.text)[1]
        (app,) = json.loads(fetch(f"{ui}/api/v1/applications"))
        rest = f"{ui}/api/v1/applications/{app['id']}"
        pages = [fetch(f"{rest}/{p}") for p in ("environment", "sql?details=true")]
        pages.append(fetch(f"{ui}/SQL/"))
        assert run.stop() == 0, run.text

    assert "jdbc" in pages[1].lower()
    logs = [f.read_text() for f in events.rglob("*") if f.is_file()]
    seen = "".join([*pages, *logs, run.text])
    seen += (ledger.folder / "logs/spark.log").read_text()
    seen += ledger.kedro("streams", "check", RUN).stdout
    assert "StreamingQuery" in seen and PASSWORD not in seen


def test_credentials_inside_a_list_are_used_and_not_shown(ledger):
    """By an entry, and by a pattern of entries, of which Kedro makes more."""
    file = ledger.folder / "conf/base/catalog.yml"
    pattern = CATALOG.partition("\nledger:")[2].replace("table: ledger", "table: any")
    file.write_text(f'{file.read_text()}\n"{{name}}_by_pattern":{pattern}')
    bootstrap_project(ledger.folder)

    with KedroSession.create(ledger.folder) as session:
        catalog = session.load_context().catalog
        built = [catalog.get(name) for name in ("ledger", "sums_by_pattern")]
        shown = str((catalog.to_config(), catalog.config_resolver.config, built))

    assert [dataset.formats for dataset in built] == [{"postgresql"}] * 2
    assert "'credentials': 'warehouse'" in shown and PASSWORD not in shown


def test_reset_says_that_sums_would_be_added_to_once_more(ledger):
    shown = ledger.kedro("streams", "reset", "ledger", input="n\n").stdout

    said = " ".join(shown.split())
    assert "stays: empty that first, or it adds every row to its sums once more" in said


def test_a_table_is_read_and_upserted_without_any_stream(ledger, postgres):
    package = ledger.folder / "src/cold_store/pipelines/report"
    package.mkdir()
    (package / "__init__.py").write_text(
        PIPELINE.replace('"deliveries", "ledger"', '"totals", "report"')
    )
    tables = {
        name: {**TABLE, "table": f"ledger_{name}"} for name in ("totals", "report")
    }
    (ledger.folder / "conf/base/catalog_report.yml").write_text(yaml.safe_dump(tables))
    postgres.do(
        "CREATE TABLE ledger_totals AS SELECT 'S0' AS sku, 6 AS units",
        "DROP TABLE IF EXISTS ledger_report",
    )

    run = ledger.kedro("run", "--pipelines=report")

    assert run.returncode == 0, run.stdout + run.stderr
    assert postgres.rows("SELECT * FROM ledger_report") == [("S0", 6)]
    postgres.do("DROP TABLE ledger_totals, ledger_report")


def test_check_says_what_the_server_would_refuse_and_what_a_replay_would_double(
    ledger, postgres
):
    postgres.do("CREATE TABLE ledger (sku text)")
    catalog = "conf/base/catalog.yml"
    appending = """
    - type: pandas.CSVDataset
      filepath: data/ledger.csv
      save_args: {mode: a}
  save_args: {checkpoint: data/04_checkpoint/ledger}"""
    ledger.edit(
        catalog, ("\n  save_args: {checkpoint: data/04_checkpoint/ledger}", appending)
    )

    check = ledger.kedro("streams", "check", RUN)

    said = " ".join(check.stdout.split())
    assert check.returncode == 1
    assert "ledger: postgresql ledger has no column units; add it there" in said
    assert "ledger: postgresql ledger has no unique index on sku" in said
    assert "data/ledger.csv appends, so a batch that is replayed" in said
    assert not (ledger.folder / "data/04_checkpoint").exists()


def test_a_mistake_that_only_the_server_can_see_ends_the_run_without_a_retry(
    ledger, postgres
):
    postgres.do(
        "CREATE TABLE ledger (sku text PRIMARY KEY, units int CHECK (units < 5))"
    )
    deliveries = Deliveries(ledger)
    deliveries.send(1)

    run = ledger.kedro("run", RUN)

    assert run.returncode == 1
    assert "CheckViolation" in run.stdout + run.stderr
    assert "restart 1" not in run.stdout + run.stderr
    assert in_table(postgres) == {}
    assert tables(postgres) == ["ledger"]
