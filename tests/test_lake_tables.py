"""Tables of Delta and Iceberg, written and read by streams."""

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pytest
import yaml
from conftest import ROWS, finish, forget_newest_commit, run_in_process, wait_until
from kedro.io import DataCatalog, DatasetError
from kedro.pipeline import Node, Pipeline
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from shell import DEADLINE
from test_bad_input import overlay, written
from test_runs import expected_stock
from test_upsert_runs import RUN, Deliveries

FORMATS = ["delta", "iceberg"]
DATASET = "cold_store.extras.datasets.SparkStreamingDataset"
UPSERT = "cold_store.extras.datasets.UpsertDataset"


@pytest.fixture(params=["delta folder", "delta table", "iceberg table"])
def place(request, spark, tmp_path):
    """A table that is not there yet, as an entry of the catalog names it."""
    file_format, kind = request.param.split()
    if kind == "folder":
        return {"file_format": file_format, "filepath": str(tmp_path / "table")}
    name = f"t{abs(hash(request.node.name))}"
    lake = "lake.shop." if file_format == "iceberg" else ""
    return {"file_format": file_format, "table": f"{lake}{name}"}


def rows(frame) -> list[tuple]:
    return sorted((row.sku, row.units) for row in frame.collect())


# --- sources and sinks -------------------------------------------------------


def partitions(spark, table) -> str:
    """Return what Spark says of how a table is divided."""
    lines = [" ".join(map(str, r)) for r in spark.sql(f"DESCRIBE {table}").collect()]
    return "\n".join(lines).partition("# Partition")[2]


def test_a_stream_makes_a_table_and_another_reads_it(
    dataset, source, arguments, place, tmp_path, spark, lake_table
):
    there = dataset(**place, save_args={**arguments, "partition_by": ["sku"]})
    assert not there.exists()

    there.save(source.load())
    finish(there)
    copied = dataset(
        file_format="parquet",
        filepath=str(tmp_path / "copy"),
        save_args={**arguments, "checkpoint": str(tmp_path / "second")},
    )
    copied.save(dataset(**place).load())
    finish(copied)

    assert there.exists()
    assert "sku" in partitions(spark, lake_table().identifier)
    assert "units" not in partitions(spark, lake_table().identifier)
    assert rows(dataset(**place, streaming=False).load()) == ROWS
    copy = dataset(
        file_format="parquet", filepath=str(tmp_path / "copy"), streaming=False
    )
    assert rows(copy.load()) == ROWS


def test_a_thread_that_has_not_spoken_to_spark_finds_the_table(
    dataset, source, arguments, place
):
    there = dataset(**place, save_args=arguments)
    stream = source.load()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(there.save, stream).result()
    finish(there)

    assert rows(dataset(**place, streaming=False).load()) == ROWS


def test_a_whole_result_replaces_the_table(dataset, source, arguments, place, tmp_path):
    there = dataset(**place, save_args={**arguments, "output_mode": "complete"})
    for units in (4, 0):
        (tmp_path / f"in/{units}.json").write_text(f'{{"sku": "A", "units": {units}}}')
        sums = source.load().groupBy("sku").sum("units").toDF("sku", "units")
        there.save(sums)
        finish(there)

    assert rows(dataset(**place, streaming=False).load()) == [("A", 7), ("B", 5)]


def test_a_batch_that_comes_again_is_recognised(
    dataset, source, arguments, place, tmp_path
):
    there = dataset(**place, save_args=arguments)
    there.save(source.load())
    finish(there)
    forget_newest_commit(tmp_path / "checkpoint")

    there.save(source.load())
    finish(there)

    assert rows(dataset(**place, streaming=False).load()) == ROWS


def test_columns_that_the_table_would_change_are_known_before(
    dataset, source, arguments, place, spark
):
    there = dataset(**place, save_args=arguments)
    there.save(source.load())
    finish(there)
    schema = "sku STRING, units DOUBLE, tags ARRAY<INT>"
    other = spark.createDataFrame([], schema).schema

    lost, changed = dataset(**place, save_args=arguments).unstorable(other)

    assert "has no column tags; add it there" in lost
    assert "column units is double here and int there, where its values" in changed
    wider = dataset(**place, save_args={**arguments, "mergeSchema": True})
    (changed,) = wider.unstorable(other)
    assert "column units is double here and int there" in changed


def test_what_is_nested_is_looked_at_as_well(spark):
    is_lossless = importlib.import_module(
        "cold_store.extras.datasets.schemas"
    ).is_lossless
    narrow, wide, other = (
        spark.createDataFrame([], f"a {schema}").schema["a"].dataType
        for schema in (
            "ARRAY<STRUCT<n: INT, by: MAP<STRING, INT>>>",
            "ARRAY<STRUCT<n: BIGINT, by: MAP<STRING, BIGINT>>>",
            "ARRAY<STRUCT<N: INT, BY: MAP<STRING, DOUBLE>>>",
        )
    )

    assert is_lossless(narrow, wide)
    assert not is_lossless(other, narrow)


@pytest.mark.parametrize(
    ("new", "old", "is_kept"),
    [
        ("INT", "DOUBLE", True),
        ("BIGINT", "DOUBLE", False),
        ("SMALLINT", "FLOAT", True),
        ("INT", "FLOAT", False),
        ("BIGINT", "TIMESTAMP", False),
        ("TIMESTAMP", "BIGINT", False),
        ("FLOAT", "DOUBLE", True),
        ("DOUBLE", "BIGINT", False),
        ("FLOAT", "INT", False),
        ("INT", "DECIMAL(4,0)", True),  # a number that is too large is an error
    ],
)
def test_a_type_that_rounds_or_means_something_else_is_not_taken_for_wider(
    spark, new, old, is_kept
):
    schemas = importlib.import_module("cold_store.extras.datasets.schemas")
    kinds = [
        spark.createDataFrame([], f"a {k}").schema["a"].dataType for k in (new, old)
    ]

    assert schemas.is_lossless(*kinds) is is_kept


@pytest.mark.parametrize("file_format", ["csv", "delta"])
def test_the_folder_of_a_plain_table_is_looked_at_before_the_start(
    code, dataset, arguments, file_format
):
    there = dataset(file_format=file_format, table="plain", save_args=arguments)

    assert f"{code.session.warehouse()}/plain" in there.paths


def test_the_folder_of_a_catalog_is_looked_at_before_the_start(
    code, dataset, arguments, monkeypatch
):
    topology = importlib.import_module("cold_store.extras.streams.topology")
    bucket = "s3a://shop/lake"
    monkeypatch.setitem(
        code.session._State.settings, "spark.sql.catalog.lake.warehouse", bucket
    )
    entry = dataset(file_format="iceberg", table="lake.db.t", save_args=arguments)
    catalog = DataCatalog({"sink": entry})
    pipeline = Pipeline([Node(lambda: None, None, "sink", name="write")])

    assert bucket in topology.Topology(pipeline, catalog).paths


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (
            {"file_format": "iceberg", "filepath": "a"},
            "'iceberg' finds tables by their name; write table: lake.shop.stock",
        ),
        ({"file_format": "delta"}, "'delta' needs a place; add filepath: data/..."),
        (
            {
                "file_format": "delta",
                "filepath": "a",
                "save_args": {"output_mode": "update", "checkpoint": "b"},
            },
            "can only append to the table or replace it; set output_mode: append or",
        ),
    ],
)
def test_a_mistake_is_refused_at_once(dataset, config, answer):
    with pytest.raises(DatasetError) as caught:
        dataset(**config)

    assert answer in str(caught.value)


def test_a_table_that_nobody_makes_is_said_so(dataset, place):
    with pytest.raises(DatasetError, match="does not exist, and no stream that ran"):
        dataset(**place).load()


# --- upserts -----------------------------------------------------------------


@pytest.fixture
def stream(code, source, place, arguments, tmp_path):
    """Run a stream of JSON files into the table, as far as it goes."""

    def run(*new, **config):
        for row in new:
            number = len(list((tmp_path / "in").iterdir()))
            (tmp_path / f"in/{number + 1}.json").write_text(json.dumps(row))
        given = {"type": UPSERT, **place, "keys": ["sku"], "create": True, **config}
        there = code.datasets.MicroBatchDataset(datasets=[given], save_args=arguments)
        there.save(source.load())
        return there

    return run


@pytest.fixture
def lake_table(code, place):
    """Find the table, as a stream does."""
    kind = importlib.import_module("cold_store.extras.datasets.lake_tables").LakeTable
    return lambda: kind(**{"filepath": None, "table": None, **place})


def test_a_merge_that_comes_again_changes_nothing_even_for_increments(
    stream, tmp_path, spark, lake_table
):
    given = {"add": ["units"], "partition_by": ["sku"]}
    finish(stream(**given))
    finish(stream({"sku": "A", "units": 10}, **given))
    forget_newest_commit(tmp_path / "checkpoint")

    finish(stream(**given))
    there = stream({"sku": "B", "units": 1}, **given)
    finish(there)

    assert rows(there.load()) == [("A", 13), ("B", 6)]
    assert "sku" in partitions(spark, lake_table().identifier)


@pytest.mark.parametrize("place", ["delta folder", "delta table"], indirect=True)
def test_a_table_that_a_kill_left_half_made_is_made(stream, lake_table):
    """Delta makes the folder of its log first, and its first commit some time later."""
    (Path(lake_table().folder) / "_delta_log").mkdir(parents=True)
    there = stream()
    finish(there)

    assert rows(there.load()) == ROWS


def test_streams_that_begin_together_make_one_table(code, spark, lake_table):
    schema = spark.createDataFrame([], "sku STRING, units INT").schema
    tables = [lake_table() for _ in range(3)]
    together = Barrier(len(tables), timeout=DEADLINE)

    def create(table) -> None:
        code.session.get_spark()
        together.wait()
        table.create(schema, [])

    with ThreadPoolExecutor(len(tables)) as threads:
        list(threads.map(create, tables))
    assert tables[0].load().schema.names == ["sku", "units"]


def test_a_table_that_another_process_makes_meanwhile_is_taken(
    spark, lake_table, monkeypatch
):
    """It is not there when we look, and there when we make our own."""
    schema = spark.createDataFrame([], "sku STRING, units INT").schema
    table = lake_table()
    table.create(schema, [])
    answers = [False, True]
    monkeypatch.setattr(type(table), "exists", lambda _: answers.pop(0))

    table.create(schema, [])

    assert not answers
    assert table.load().schema.names == ["sku", "units"]


def test_a_batch_is_read_once_however_often_it_is_looked_at(stream):
    there = stream(add=["units"])
    finish(there)

    assert sum(p["numInputRows"] for p in there.query.recentProgress) == len(ROWS)


def test_after_a_reset_the_same_numbers_are_other_batches(stream, tmp_path):
    finish(stream(add=["units"]))
    (tmp_path / "checkpoint").rename(tmp_path / "other")

    there = stream(add=["units"])
    finish(there)

    assert rows(there.load()) == [("A", 6), ("B", 10)]


def test_rows_are_updated_by_their_key_and_the_highest_wins(stream):
    finish(stream(order_by="units"))

    there = stream({"sku": "A", "units": 9}, {"sku": "B", "units": 1}, order_by="units")
    finish(there)

    assert rows(there.load()) == [("A", 9), ("B", 5)]


def test_what_the_table_would_refuse_is_known_before(stream, spark):
    there = stream()
    finish(there)
    wider = spark.createDataFrame([], "sku STRING, units INT, colour STRING").schema
    missing = spark.createDataFrame([], "units INT").schema

    other = spark.createDataFrame([], "sku STRING, Units DOUBLE").schema

    assert "has no column colour; add it there" in " ".join(there.unstorable(wider))
    (problem,) = there.unstorable(other)
    assert "column Units is double here and int there, where its values" in problem
    assert "keys names sku, and the rows have" in " ".join(there.unstorable(missing))
    assert not list(there.unstorable(source_schema := there.data.schema)), source_schema


BAD_ROWS = pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([{"sku": "A", "units": 2}, {"sku": "A", "units": 3}], "several rows with the"),
        ([{"units": 2}], "key column sku is null in a row"),
    ],
    ids=["twice", "null"],
)


def test_a_column_that_a_batch_does_not_have_stays_as_it_is(
    stream, dataset, arguments, source, place, spark, lake_table, tmp_path
):
    table = lake_table()
    name, kind = table.identifier, table.file_format
    spark.sql(f"CREATE TABLE {name} (sku STRING, units INT, aisle STRING) USING {kind}")
    spark.sql(f"INSERT INTO {name} VALUES ('A', 1, 'cold')")
    appending = dataset(
        **place, save_args={**arguments, "checkpoint": str(tmp_path / "appending")}
    )

    merged = stream()
    assert not list(merged.unstorable(merged.data.schema))
    finish(merged)
    after_merge = sorted(map(tuple, table.load().collect()))
    appending.save(source.load())
    assert not list(appending.unstorable(appending.data.schema))
    finish(appending)

    assert after_merge == [("A", 3, "cold"), ("B", 5, None)]
    assert ("A", 3, None) in map(tuple, table.load().collect())


@BAD_ROWS
def test_a_first_batch_that_cannot_be_merged_makes_no_table(code, stream, bad, reason):
    there = stream(*bad)

    with pytest.raises(StreamingQueryException, match=reason):
        there.query.awaitTermination(DEADLINE)

    assert code.errors.is_final(there.failure)
    assert not there.exists()


@BAD_ROWS
def test_a_later_batch_that_cannot_be_merged_changes_nothing(
    code, stream, dataset, place, bad, reason
):
    finish(stream())

    there = stream(*bad)

    with pytest.raises(StreamingQueryException, match=reason):
        there.query.awaitTermination(DEADLINE)
    assert code.errors.is_final(there.failure)
    assert rows(dataset(**place, streaming=False).load()) == ROWS


def test_a_column_that_the_table_requires_is_known_before(stream, spark, lake_table):
    table = lake_table()
    name, kind = table.identifier, table.file_format
    spark.sql(f"CREATE TABLE {name} (sku STRING, aisle STRING NOT NULL) USING {kind}")
    schema = spark.createDataFrame([], "sku STRING").schema

    (problem,) = table.problems(schema)

    assert "wants a value for aisle (NOT NULL), and the rows have none" in problem


@pytest.mark.parametrize("place", ["delta table"], indirect=True)
def test_a_column_that_delta_fills_need_not_be_there(spark, lake_table):
    table = lake_table()
    spark.sql(
        f"CREATE TABLE {table.identifier} (sku STRING, aisle STRING NOT NULL DEFAULT 'A')"
        " USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )

    assert not list(table.problems(spark.createDataFrame([], "sku STRING").schema))


@pytest.mark.parametrize("place", ["delta folder"], indirect=True)
def test_a_column_that_a_new_table_of_delta_cannot_have_is_known_before(
    spark, lake_table
):
    schema = spark.createDataFrame([], "sku STRING, `new stock` INT").schema

    (problem,) = lake_table().problems(schema)

    assert "can have no column new stock, because of a space" in problem


def test_totals_of_a_new_table_have_room_for_many_rows(stream):
    row = {"sku": "C", "units": 2_000_000_000}

    there = stream(row, row, add=["units"])
    finish(there)

    assert rows(there.load()) == [("A", 3), ("B", 5), ("C", 4_000_000_000)]


@pytest.mark.parametrize("place", ["delta folder", "delta table"], indirect=True)
def test_a_total_that_is_too_large_for_its_table_is_named(
    code, stream, spark, lake_table
):
    """Delta says of it that a task failed, and keeps why to itself."""
    name = lake_table().identifier
    spark.sql(f"CREATE TABLE {name} (sku STRING, units INT) USING delta")
    spark.sql(f"INSERT INTO {name} VALUES ('C', 2000000000)")

    there = stream({"sku": "C", "units": 2_000_000_000}, add=["units"])

    with pytest.raises(StreamingQueryException):
        there.query.awaitTermination(DEADLINE)
    reason = str(there.failure)
    assert 'into the "INT" type column `units` due to an overflow' in reason
    assert code.errors.is_final(there.failure)


def test_totals_to_which_spark_would_add_with_fewer_digits_are_refused(
    code, place, spark, lake_table
):
    def said(**table) -> str:
        given = {"keys": ["sku"], "add": ["price"], "create": True, **place}
        frame = spark.createDataFrame([], table["schema"])
        return " ".join(code.datasets.UpsertDataset(**given).problems(frame.schema))

    assert "make it DECIMAL(37,18)" in said(schema="sku STRING, price DECIMAL(38,18)")
    assert not said(schema="sku STRING, price DECIMAL(37,18)")
    assert not said(schema="sku STRING, price DECIMAL(38,6)")
    table = lake_table()
    spark.sql(
        f"CREATE TABLE {table.identifier} (sku STRING, price DECIMAL(38,18)) "
        f"USING {table.file_format}"
    )
    assert "make it DECIMAL(37,18)" in said(schema="sku STRING, price DECIMAL(20,10)")


def test_a_value_that_cannot_be_written_is_named(
    code, dataset, arguments, place, spark, source
):
    """Spark says of a sink of its own that a task failed, and keeps the reason behind it."""

    @F.udf("int")
    def broken(units):
        return 1 // (units - units)

    reasons = []
    for number, units in enumerate(
        (F.col("sku").cast("int"), broken("units")),
    ):
        there = dataset(
            **place,
            save_args={**arguments, "checkpoint": f"{arguments['checkpoint']}{number}"},
        )
        there.save(source.load().select("sku", units.alias("units")))
        with pytest.raises(StreamingQueryException):
            there.query.awaitTermination(DEADLINE)
        ended = code.errors.why_it_ended(there.query)
        assert code.errors.is_final(ended)
        reasons.append(code.errors.first_sentence(ended))

    cast, raised = reasons
    assert 'The value \'A\' of the type "STRING" cannot be cast to "INT"' in cast
    assert "ZeroDivisionError" in raised and "test_lake_tables.py" in raised


def test_totals_of_long_decimals_lose_no_digit(code, place, spark):
    price = Decimal("0.0000000001")
    rows = spark.createDataFrame([("A", price)] * 2, "sku STRING, price DECIMAL(30,10)")
    there = code.datasets.UpsertDataset(
        **place, keys=["sku"], add=["price"], create=True
    )

    for _ in range(2):
        there.save(rows)

    assert [row.price for row in there.load().collect()] == [4 * price]


@pytest.mark.parametrize("place", ["iceberg table"], indirect=True)
def test_a_stream_since_a_moment_misses_only_rows_since_then(stream, spark, lake_table):
    finish(stream())
    finish(stream({"sku": "C", "units": 1}))
    table = lake_table()
    lost = table.has_lost_rows(None)
    now = f"TIMESTAMP '{datetime.now(timezone.utc)}'"
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.table}', "
        f"older_than => {now}, retain_last => 1)"
    )

    assert not lost and table.has_lost_rows(None)
    assert table.has_lost_rows("0") and not table.has_lost_rows(str(10**13))


@pytest.mark.parametrize("place", ["delta folder", "delta table"], indirect=True)
def test_a_table_that_is_divided_otherwise_is_refused(
    dataset, source, arguments, place
):
    by = {**arguments, "partition_by": ["sku"]}
    there = dataset(**place, save_args=arguments)
    there.save(source.load())
    finish(there)

    (problem,) = dataset(**place, save_args=by).unstorable(source.load().schema)

    assert "is not divided, and partition_by names sku; write there what" in problem


def test_a_table_of_delta_in_the_catalog_of_iceberg_is_refused(code, spark):
    schema = spark.createDataFrame([], "sku STRING, units INT").schema
    given = {"file_format": "delta", "table": "lake.shop.stock", "keys": ["sku"]}

    (said,) = code.datasets.UpsertDataset(**given, create=True).problems(schema)

    assert "has tables of Iceberg; write file_format: iceberg" in said


def test_a_table_of_iceberg_in_no_catalog_of_its_own_is_refused(code, spark, dataset):
    schema = spark.createDataFrame([], "sku STRING, units INT").schema
    given = {"file_format": "iceberg", "table": "shop.stock"}

    (sinks,) = dataset(**given, save_args={"checkpoint": "c"}).unstorable(schema)
    upsert = code.datasets.UpsertDataset(**given, keys=["sku"], create=True)
    (upserts,) = upsert.problems(schema)

    assert "begins with no catalog that conf/base/spark.yml knows; write" in sinks
    assert "table: lake.shop.stock" in upserts


def test_an_upsert_that_names_what_it_cannot_use_is_refused(code, tmp_path, spark):
    given = {"file_format": "delta", "keys": ["sku"], "filepath": str(tmp_path / "t")}
    upsert = code.datasets.UpsertDataset

    with pytest.raises(DatasetError, match="filepath and table exclude each other"):
        upsert(**given, table="t")
    with pytest.raises(DatasetError, match="credentials do nothing for file_format"):
        upsert(**given, credentials={"user": "me"})
    divided = upsert(**given, create=True, partition_by="day")
    (problem,) = divided.problems(spark.createDataFrame([], "sku STRING").schema)
    assert "partition_by names day, and the rows have only sku" in problem
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (sku STRING) USING delta")
    assert not list(divided.problems(spark.createDataFrame([], "sku STRING").schema))


def test_a_table_that_is_not_to_be_made_must_be_there(stream, spark):
    schema = spark.createDataFrame([], "sku STRING, units INT").schema

    there = stream(create=False)

    assert "does not exist; create it" in " ".join(there.unstorable(schema))
    with pytest.raises(Exception, match="does not exist; create it"):
        there.query.awaitTermination(DEADLINE)


# --- runs --------------------------------------------------------------------


def chained(file_format: str, name: str) -> dict:
    """The deliveries between the two streams of the inventory, as a table."""
    entry = {"type": DATASET, "file_format": file_format}
    if file_format == "delta":
        entry["filepath"] = "data/02_intermediate/inventory"
    else:
        entry["table"] = f"lake.shop.{name}"
    saved = {"checkpoint": "data/04_checkpoint/int_new_inventory"}
    return {"int.new_inventory": {**entry, "save_args": saved}}


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_stream_reads_the_table_that_another_writes_on_the_first_run(
    project, spark, file_format, tmp_path
):
    overlay(project, chained(file_format, f"chained_{abs(hash(str(tmp_path)))}"))

    run_in_process(project, "inventory")

    assert project.lines("data/03_primary/stock.csv") == expected_stock(project)


def test_a_stream_cannot_follow_a_table_that_another_replaces(
    code, spark, dataset, arguments, tmp_path
):
    """Nor one that another changes, but whether a merge does nobody knows before."""
    checks = importlib.import_module("cold_store.extras.streams.checks")
    warnings = importlib.import_module("cold_store.extras.streams.warnings")
    topology = importlib.import_module("cold_store.extras.streams.topology").Topology
    table = {"file_format": "delta", "filepath": str(tmp_path / "table")}
    merged = {"type": UPSERT, **table, "keys": ["sku"], "create": True}
    batches = code.datasets.MicroBatchDataset(datasets=[merged], save_args=arguments)
    replaced = dataset(**table, save_args={**arguments, "output_mode": "complete"})
    appended = dataset(**table, save_args=arguments)
    nodes = [
        Node(len, "raw", "sink", name="write"),
        Node(len, "read", "out", name="read"),
    ]

    def refused(sink, **reading) -> bool:
        entries = {"sink": sink, "read": dataset(**table, **reading)}
        found = topology(Pipeline(nodes), DataCatalog(entries))
        said = " ".join(checks.before_nodes(spark, found))
        return "read: every batch of sink replaces this table" in said

    def warned(sink, **reading) -> bool:
        entries = {"sink": sink, "read": dataset(**table, **reading)}
        found = topology(Pipeline(nodes), DataCatalog(entries))
        return "read: sink merges into" in " ".join(
            warnings.rows_that_may_change(found)
        )

    iceberg_alone = {"streaming-skip-overwrite-snapshots": True}
    for sink, finds in ((replaced, refused), (batches, warned)):
        assert finds(sink)
        assert not finds(sink, streaming=False)
        assert not finds(sink, load_args={"skipChangeCommits": True})
        assert finds(sink, load_args={"skipChangeCommits": False})
        assert finds(sink, load_args=iceberg_alone)
    assert not refused(batches) and not warned(replaced)
    assert not refused(appended) and not warned(appended)
    (both,) = warnings.keys_that_come_twice({"sink": batches, "other": appended})
    assert both.startswith("sink and other write one table, sink one row a key and")
    entries = {"sink": batches, "read": dataset(**table), "out": replaced}
    found = topology(Pipeline(nodes), DataCatalog(entries))
    assert found.downstream("sink") == ["out"]


def test_a_stream_follows_merges_until_one_changes_a_row(
    code, stream, dataset, place, tmp_path
):
    def follow():
        there = dataset(
            file_format="parquet",
            filepath=str(tmp_path / "copy"),
            save_args={
                "checkpoint": str(tmp_path / "following"),
                "trigger": "available_now",
            },
        )
        there.save(dataset(**place).load())
        return there

    copied = dataset(
        file_format="parquet", filepath=str(tmp_path / "copy"), streaming=False
    )
    finish(stream())
    finish(follow())
    finish(stream({"sku": "C", "units": 7}))
    finish(follow())
    assert rows(copied.load()) == [*ROWS, ("C", 7)]

    finish(stream({"sku": "A", "units": 4}))
    there = follow()
    with pytest.raises(StreamingQueryException):
        there.query.awaitTermination(DEADLINE)

    ended = code.errors.why_it_ended(there.query)
    reason = code.errors.first_sentence(ended)
    assert code.errors.is_final(ended)
    assert "A stream can only follow a table to which rows are added" in reason
    assert "skipChangeCommits" not in reason, "which would leave out whole batches"
    assert rows(copied.load()) == [*ROWS, ("C", 7)]


@pytest.mark.parametrize("file_format", FORMATS)
def test_check_names_a_package_that_spark_yml_lacks(project, file_format):
    settings = project.folder / "conf/base/spark.yml"
    begin = f"\n  {file_format}: "
    settings.write_text(
        settings.read_text().replace(begin[:-1], f"\n  my_{begin[3:-1]}")
    )
    overlay(project, chained(file_format, "unknown"))

    checked = project.kedro("streams", "check", "--pipelines=inventory")

    said = " ".join((checked.stdout + checked.stderr).split())
    assert checked.returncode == 1
    assert f"file_format '{file_format}' is not known to Spark" in said
    assert f"under packages, e.g. {file_format}: group:artifact" in said


@pytest.mark.parametrize("file_format", FORMATS)
def test_check_makes_no_table(project, file_format):
    overlay(project, chained(file_format, "checked"))
    before = written(project)

    check = project.kedro("streams", "check", "--pipelines=inventory")

    assert check.returncode == 0, check.stdout
    assert written(project) - before == set()


KINDS = ("ledger", "appended", "replaced")
WAREHOUSE = "spark-warehouse/"
THREE_SINKS = """
from kedro.pipeline import Node, Pipeline
from pyspark.sql import functions as F


def take(deliveries):
    return deliveries


def add_up(deliveries):
    return deliveries.groupBy("sku").agg(F.sum("units").alias("units"))


def create_pipeline():
    return Pipeline(
        [
            Node(take, "deliveries", "ledger", name="merge"),
            Node(take, "deliveries", "appended", name="append"),
            Node(add_up, "deliveries", "replaced", name="replace"),
        ]
    )
"""
DELIVERIES = """
deliveries:
  type: cold_store.extras.datasets.SparkStreamingDataset
  file_format: json
  filepath: data/01_raw/deliveries
  load_args: {schema: "sku STRING, units INT", maxFilesPerTrigger: 1}
"""


def three_sinks(file_format: str) -> dict[str, dict]:
    """Entries that merge deliveries, append them, and replace their sums."""

    def table(name: str) -> dict[str, str]:
        place = {"table": f"lake.shop.{name}"}
        if file_format == "delta":
            is_named = name != "appended"
            place = {"table": name} if is_named else {"filepath": WAREHOUSE + name}
        return {"file_format": file_format, **place}

    def saved(name: str, mode: str) -> dict[str, str]:
        return {"output_mode": mode, "checkpoint": f"data/04_checkpoint/{name}"}

    upsert = {"type": UPSERT, "keys": ["sku"], "add": ["units"], "create": True}
    replacing = {"overwriteSchema": True} if file_format == "delta" else {}
    return {
        "ledger": {
            "type": "cold_store.extras.datasets.MicroBatchDataset",
            "datasets": [{**upsert, **table("ledger")}],
            "save_args": saved("ledger", "append"),
        },
        "appended": {
            "type": DATASET,
            **table("appended"),
            "save_args": saved("appended", "append"),
        },
        "replaced": {
            "type": DATASET,
            **table("replaced"),
            "save_args": saved("replaced", "complete") | replacing,
        },
    }


@pytest.mark.parametrize("file_format", FORMATS)
def test_kills_lose_nothing_and_double_nothing(project, spark, file_format):
    package = project.folder / "src/cold_store/pipelines/ledger"
    package.mkdir()
    (package / "__init__.py").write_text(THREE_SINKS)
    catalog = project.folder / "conf/base/catalog.yml"
    entries = yaml.safe_dump(three_sinks(file_format))
    catalog.write_text(catalog.read_text() + DELIVERIES + entries)
    (project.folder / "data/01_raw/deliveries").mkdir()
    deliveries = Deliveries(project)
    cut: set[str] = set()

    def in_a_batch() -> set[str]:
        return {n for n in KINDS if project.newest(n) < project.newest(n, "offsets")}

    for _ in range(3 * len(KINDS)):
        if not (uncut := [name for name in KINDS if name not in cut]):
            break
        deliveries.send(3)
        first = project.newest(uncut[0]) + 1
        with project.live(RUN) as run:
            wait_until(
                lambda name=uncut[0], first=first: (
                    (project.newest(name, "offsets") > first and name in in_a_batch())
                    or project.commits(name) == deliveries.files  # they were too fast
                    or run.process.poll() is not None
                ),
                f"a batch of {uncut[0]} after the first",
            )
            assert run.process.poll() is None, run.text
            run.kill()
        cut |= in_a_batch()
    assert cut == {*KINDS}, "a kill in a batch of each"

    project.run(RUN)

    for name in KINDS:
        lake = WAREHOUSE if file_format == "delta" else "data/03_primary/lake/shop/"
        folder = project.folder / (lake + name)
        table = spark.read.format(file_format).load(str(folder))
        found = table.groupBy("sku").sum("units").collect()
        assert dict(map(tuple, found)) == deliveries.units, name
        if name != "appended":
            assert table.count() == len(deliveries.units), name
