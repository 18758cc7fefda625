"""Upserts into a real PostgreSQL: by dataset, and by runs that are killed."""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pytest
from conftest import ROWS, finish, forget_newest_commit, wait_until
from databases import PASSWORD
from kedro.io import DatasetError
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from shell import DEADLINE

KEYS = {"keys": ["sku"]}
UPSERT = "cold_store.extras.datasets.UpsertDataset"


@pytest.fixture
def table(postgres, request):
    """The name of a table that is not there yet."""
    name = f"t{abs(hash(request.node.name))}"
    yield name
    postgres.do(f'DROP TABLE IF EXISTS "{name}" CASCADE')


@pytest.fixture
def upsert(code, spark, postgres, table):
    """Build a dataset that upserts, outside of a stream."""

    def build(**config):
        given = {"keys": ["sku"], "credentials": postgres.credentials, **config}
        return code.datasets.UpsertDataset(
            file_format="postgresql", **{"table": table, **given}
        )

    return build


@pytest.fixture
def stream(code, spark, postgres, table, source, tmp_path):
    """Run a stream of JSON files into the table, as far as it goes."""

    def run(rows=None, **config):
        for row in rows or ():
            number = len(list((tmp_path / "in").iterdir()))
            (tmp_path / f"in/{number + 1}.json").write_text(
                "\n".join(map(json.dumps, row if isinstance(row, list) else [row]))
            )
        given = {"type": UPSERT, "file_format": "postgresql", "table": table}
        given |= {"keys": ["sku"], "credentials": postgres.credentials, **config}
        there = code.datasets.MicroBatchDataset(
            datasets=[given],
            save_args={
                "checkpoint": str(tmp_path / "checkpoint"),
                "trigger": "available_now",
            },
        )
        there.save(source.load())
        return there

    return run


# --- what a table becomes ----------------------------------------------------


def test_rows_are_updated_by_their_key_and_new_ones_are_added(
    spark, postgres, upsert, table
):
    postgres.do(f"CREATE TABLE {table} (sku text PRIMARY KEY, units int, note text)")
    postgres.do(f"INSERT INTO {table} VALUES ('A', 1, 'kept'), ('Z', 9, 'kept')")

    upsert().save(spark.createDataFrame([("A", 3), ("B", 5)], "sku STRING, units INT"))

    rows = postgres.rows(f"SELECT * FROM {table} ORDER BY sku")
    assert rows == [("A", 3, "kept"), ("B", 5, None), ("Z", 9, "kept")]
    assert {row.sku: row.units for row in upsert().load().collect()}["B"] == 5
    assert upsert().exists()


def test_the_first_batch_makes_the_table_with_proper_types(
    spark, postgres, upsert, table
):
    frame = spark.sql(
        "SELECT 'A' AS sku, 1 AS `line no`, 2L AS big, 1.5D AS ratio, "
        "CAST(9.99 AS DECIMAL(10,2)) AS price, true AS sold, DATE'2026-01-02' AS day, "
        "TIMESTAMP'2026-01-02 03:04:05' AS at, array('x', 'y') AS tags, "
        "unhex('00FF') AS raw, CAST(NULL AS STRING) AS nothing"
    )

    upsert(keys=["sku", "line no"], create=True).save(frame)

    types = postgres.rows(
        "SELECT column_name, data_type FROM information_schema.columns "
        f"WHERE table_name = '{table}'"
    )
    assert dict(types) == {
        "sku": "text",
        "line no": "integer",
        "big": "bigint",
        "ratio": "double precision",
        "price": "numeric",
        "sold": "boolean",
        "day": "date",
        "at": "timestamp with time zone",
        "tags": "ARRAY",
        "raw": "bytea",
        "nothing": "text",
    }
    (row,) = postgres.rows(
        f"SELECT price, at AT TIME ZONE 'UTC', tags, raw FROM {table}"
    )
    assert row[0] == Decimal("9.99") and str(row[1]) == "2026-01-02 03:04:05"
    assert (row[2], bytes(row[3])) == (["x", "y"], b"\x00\xff")


def test_text_goes_into_columns_of_types_that_spark_does_not_have(
    spark, postgres, upsert, table
):
    postgres.do(f"CREATE TABLE {table} (sku uuid PRIMARY KEY, about jsonb, ip inet)")
    key = "0a0a0a0a-0000-0000-0000-000000000001"

    other = key.replace("1", "2")
    rows = [(key, '{"a": 1}', "10.0.0.1"), (other, None, None)]

    upsert().save(spark.createDataFrame(rows, "sku STRING, about STRING, ip STRING"))

    assert postgres.rows(f"SELECT about->>'a', host(ip) FROM {table} ORDER BY sku") == [
        ("1", "10.0.0.1"),
        (None, None),
    ]


def test_a_text_that_is_too_long_is_refused_and_not_cut(spark, postgres, upsert, table):
    postgres.do(
        f"CREATE DOMAIN {table}_code AS varchar(3)",
        f"CREATE TABLE {table} (sku {table}_code PRIMARY KEY, note char(2))",
    )

    with pytest.raises(DatasetError, match="too long"):
        upsert().save(
            spark.createDataFrame([("A-123", "x")], "sku STRING, note STRING")
        )
    upsert().save(spark.createDataFrame([("A-1", "xy")], "sku STRING, note STRING"))

    assert postgres.rows(f"SELECT * FROM {table}") == [("A-1", "xy")]


def test_a_moment_is_kept_only_with_its_time_zone(spark, postgres, upsert, table):
    moment, clock = (
        spark.createDataFrame([], f"sku STRING, at {kind}").schema
        for kind in ("TIMESTAMP", "TIMESTAMP_NTZ")
    )
    postgres.do(f"CREATE TABLE {table} (sku text PRIMARY KEY, at timestamp)")

    assert "at is timestamp here and timestamp_ntz there" in problems(upsert(), moment)
    assert not problems(upsert(), clock)
    postgres.do(f"ALTER TABLE {table} ALTER COLUMN at TYPE timestamptz")
    assert not problems(upsert(), moment)
    day = spark.createDataFrame([], "sku STRING, at DATE").schema
    assert "at is date here and timestamp there" in problems(upsert(), day)


def test_a_number_of_many_digits_is_not_rounded(spark, postgres, upsert, table):
    postgres.do(
        f"CREATE TABLE {table} (sku text PRIMARY KEY, units numeric, more real)"
    )
    rounded = spark.createDataFrame([], "sku STRING, units DOUBLE, more INT").schema
    kept = spark.createDataFrame([], "sku STRING, units BIGINT, more FLOAT").schema

    assert "units is double here and decimal" in problems(upsert(), rounded)
    assert "more is int here and float there" in problems(upsert(), rounded)
    assert not problems(upsert(), kept)


def test_a_key_that_a_batch_spells_in_two_ways_is_refused(
    code, spark, postgres, upsert, table
):
    postgres.do(f"CREATE TABLE {table} (sku uuid PRIMARY KEY, units int)")
    key = "0a0a0a0a-0000-0000-0000-000000000001"
    rows = spark.createDataFrame([(key, 1), (key.upper(), 2)], "sku STRING, units INT")

    with pytest.raises(
        DatasetError, match="which are one and the same in .*lower"
    ) as caught:
        upsert(add=["units"]).save(rows)

    assert code.errors.is_final(caught.value)
    assert postgres.rows(f"SELECT * FROM {table}") == []


def test_the_highest_of_a_batch_wins_and_an_older_row_changes_nothing(
    spark, postgres, upsert, table
):
    there = upsert(order_by="at", create=True)
    schema = "sku STRING, units INT, at INT"

    there.save(
        spark.createDataFrame(
            [("A", 1, 1), ("A", 3, 3), ("A", 2, 2), ("B", 7, None)], schema
        )
    )
    there.save(spark.createDataFrame([("A", 0, 2), ("B", 8, 1)], schema))

    rows = postgres.rows(f"SELECT * FROM {table} ORDER BY sku")
    assert rows == [("A", 3, 3), ("B", 8, 1)]


def test_increments_are_added_up_with_what_is_there(spark, postgres, upsert, table):
    there = upsert(add=["units"], order_by="at", create=True)
    schema = "sku STRING, units INT, at INT"

    there.save(spark.createDataFrame([("A", 1, 1), ("A", 2, 5), ("B", 1, 1)], schema))
    there.save(spark.createDataFrame([("A", 10, 4), ("B", None, 2)], schema))

    rows = postgres.rows(f"SELECT * FROM {table} ORDER BY sku")
    assert rows == [("A", 13, 5), ("B", 1, 2)]


def test_totals_of_a_new_table_have_room_for_many_rows(spark, postgres, upsert, table):
    there = upsert(add=["units"], create=True)
    schema = "sku STRING, units INT"

    for _ in range(2):
        there.save(spark.createDataFrame([("A", 2_000_000_000)] * 2, schema))

    assert postgres.rows(f"SELECT * FROM {table}") == [("A", 8_000_000_000)]


def test_a_number_that_is_too_large_is_refused_without_its_row(
    code, spark, postgres, upsert, table
):
    postgres.do(f"CREATE TABLE {table} (sku text PRIMARY KEY, units smallint)")

    with pytest.raises(DatasetError) as caught:
        upsert().save(
            spark.createDataFrame([("hidden", 40_155)], "sku STRING, units INT")
        )

    assert str(caught.value).endswith("\nsmallint out of range")
    assert code.errors.is_final(caught.value)


def test_totals_of_long_decimals_lose_no_digit(spark, postgres, upsert, table):
    there = upsert(add=["price"], create=True)
    price = Decimal("0.0000000001")
    rows = spark.createDataFrame([("A", price)] * 2, "sku STRING, price DECIMAL(30,10)")

    for _ in range(2):
        there.save(rows)

    assert postgres.rows(f"SELECT price FROM {table}") == [(4 * price,)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("A", 2), 'several rows with the key {"sku":"A"}, and nothing says which'),
        ((None, 2), "key column sku is null in a row, which could never be updated"),
    ],
)
def test_a_batch_that_cannot_be_merged_changes_nothing(
    spark, postgres, upsert, table, row, reason
):
    there = upsert(create=True)
    there.save(spark.createDataFrame([("A", 1)], "sku STRING, units INT"))

    with pytest.raises(DatasetError) as caught:
        there.save(
            spark.createDataFrame([("A", 9), ("B", 1), row], "sku STRING, units INT")
        )

    assert reason in str(caught.value)
    assert postgres.rows(f"SELECT * FROM {table}") == [("A", 1)]


# --- streams: what comes again, and what comes at a bad time -----------------


def test_a_batch_that_comes_again_changes_nothing_even_for_increments(
    stream, postgres, table, tmp_path
):
    given = {"add": ["units"], "create": True}
    finish(stream(**given))
    finish(stream([{"sku": "A", "units": 10}], **given))
    forget_newest_commit(tmp_path / "checkpoint")

    finish(stream(**given))
    finish(stream([{"sku": "B", "units": 1}], **given))

    assert postgres.rows(f"SELECT sku, units FROM {table} ORDER BY 1") == [
        ("A", 13),
        ("B", 6),
    ]
    assert tables(postgres, table) == [table]


def tables(postgres, table) -> list[str]:
    """Return the table, and with it whatever batches have left beside it."""
    like = f"SELECT tablename FROM pg_tables WHERE tablename LIKE '{table}%'"
    return sorted(name for (name,) in postgres.rows(like))


def test_a_stage_of_a_dead_driver_that_somebody_holds_is_not_waited_for(
    spark, postgres, upsert, table
):
    there = upsert(create=True, add=["units"])._store
    rows = spark.createDataFrame([("A", 3)], "sku STRING, units INT")
    held, free = f"{table}__a-stream_00000001", f"{table}__a-stream_00000002"
    postgres.do(f'CREATE TABLE "{held}" (sku text)', f'CREATE TABLE "{free}" ()')
    with postgres.connect() as executor:
        executor.execute(f"""INSERT INTO "{held}" VALUES ('A')""")

        there.merge(rows, "a-stream", 0)

        assert tables(postgres, table) == [table, held]
    there.merge(rows, "a-stream", 1)

    assert postgres.rows(f"SELECT sku, units FROM {table}") == [("A", 6)]
    assert tables(postgres, table) == [table]


def test_several_tasks_write_a_stage(spark, postgres, upsert, table, monkeypatch):
    """Each in a transaction of its own, whose number its rows have."""
    joins_small_tasks = "spark.sql.adaptive.coalescePartitions.enabled"
    spark.conf.set(joins_small_tasks, False)
    there = upsert(create=True)._store
    take_in, writers = there._take_in, []

    def count_and_take_in(connection, stage, schema):
        found = connection.execute(f'SELECT count(DISTINCT xmin::text) FROM "{stage}"')
        writers.append(found.fetchone()[0])
        take_in(connection, stage, schema)

    monkeypatch.setattr(there, "_take_in", count_and_take_in)
    try:
        there.merge(spark.range(100).withColumnRenamed("id", "sku"), "a-stream", 0)
    finally:
        spark.conf.unset(joins_small_tasks)

    assert writers[0] > 1
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(100,)]


def test_saves_and_streams_that_begin_together_make_one_table(
    spark, postgres, upsert, table
):
    """Their transactions wait until all have staged their rows, and then go at once."""
    postgres.do("DROP TABLE IF EXISTS spark_batches")
    rows = spark.createDataFrame([("A", 1)], "sku STRING, units INT")
    stores = [upsert(create=True, add=["units"])._store for _ in range(3)]
    together = Barrier(len(stores), timeout=DEADLINE)

    def merge(number: int) -> None:
        store, fill = stores[number], stores[number]._fill

        def fill_and_wait(*arguments):
            fill(*arguments)
            together.wait()

        store._fill = fill_and_wait
        store.merge(rows, f"{number}-stream", 0 if number else None)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(merge, range(len(stores))))

    assert postgres.rows(f"SELECT sku, units FROM {table}") == [("A", len(stores))]
    assert tables(postgres, table) == [table]


def test_a_batch_that_a_driver_taken_for_dead_was_faster_with_changes_nothing(
    spark, postgres, upsert, table, monkeypatch
):
    there = upsert(create=True, add=["units"])._store
    monkeypatch.setattr(there, "_is_done", lambda *_: False)
    rows = spark.createDataFrame([("A", 3)], "sku STRING, units INT")

    for _ in range(2):
        there.merge(rows, "a-stream", 7)

    assert postgres.rows(f"SELECT sku, units FROM {table}") == [("A", 3)]


def test_another_stream_with_the_same_batch_numbers_is_not_taken_for_a_replay(
    stream, postgres, table, tmp_path
):
    """As after a reset: the checkpoint is new, and its batches begin with 0 again."""
    finish(stream(add=["units"], create=True))
    (tmp_path / "checkpoint").rename(tmp_path / "other")

    finish(stream(add=["units"]))

    assert postgres.rows(f"SELECT sum(units)::int FROM {table}") == [(16,)]


def test_a_deadlock_fails_the_batch_and_the_next_try_takes_it_in(
    code, stream, postgres, table, tmp_path
):
    """Another writer takes the rows in the other order, and PostgreSQL ends one."""
    postgres.do(
        f"CREATE TABLE {table} (sku text PRIMARY KEY, units int)",
        f"INSERT INTO {table} VALUES ('A', 0), ('B', 0)",
    )
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with postgres.connect() as other:
        other.execute("SET deadlock_timeout = '1h'")  # so that the stream is the victim
        other.execute(f"SET lock_timeout = '{DEADLINE}s'")
        other.execute(f"UPDATE {table} SET units = units WHERE sku = 'B'")
        running = stream(add=["units"])
        wait_until(lambda: postgres.rows(waiting), "the stream to wait for a row")
        other.execute(f"UPDATE {table} SET units = units WHERE sku = 'A'")
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination(DEADLINE)

    assert "DeadlockDetected" in str(running.failure)
    assert not code.errors.is_final(running.failure)
    finish(stream(add=["units"]))
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("A", 3), ("B", 5)]


def test_what_a_column_cannot_hold_is_refused_for_good(
    code, stream, postgres, table, tmp_path
):
    """Text may go into any column, so that only the server can see what is wrong."""
    postgres.do(f"CREATE TABLE {table} (sku int PRIMARY KEY, units int)")

    running = stream()
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination(DEADLINE)

    said = str(running.failure)
    assert "InvalidTextRepresentation" in said and 'type integer: "' in said
    assert code.errors.is_final(running.failure)
    assert tables(postgres, table) == [table]


def test_batches_go_to_tables_by_sparks_own_jdbc_dataset(
    code, source, postgres, table, arguments
):
    there = code.datasets.MicroBatchDataset(
        datasets=[
            {
                "type": "spark.SparkJDBCDataset",
                "table": f"{table}_{{batch_id}}",
                "save_args": {"mode": "overwrite"},
                "credentials": {
                    **postgres.credentials,
                    "driver": "org.postgresql.Driver",
                },
            }
        ],
        save_args=arguments,
    )
    for _ in range(2):
        there.save(source.load())
        finish(there)
        forget_newest_commit(Path(arguments["checkpoint"]))

    assert there.formats == {"postgresql"} and not list(there.hazards())
    assert PASSWORD not in str(there)
    assert postgres.rows(f"SELECT * FROM {table}_0 ORDER BY 1") == ROWS
    postgres.do(f"DROP TABLE {table}_0")


def test_a_batch_that_does_not_fit_a_table_leaves_nothing_half_written(
    code, source, postgres, table, arguments
):
    postgres.do(f"CREATE TABLE {table} (sku text)")
    secrets = {**postgres.credentials, "driver": "org.postgresql.Driver"}
    there = code.datasets.MicroBatchDataset(
        datasets=[
            {
                "type": "spark.SparkJDBCDataset",
                "table": table,
                "save_args": {"mode": "append"},
                "credentials": secrets,
            }
        ],
        save_args=arguments,
    )

    there.save(source.load())
    with pytest.raises(StreamingQueryException):
        there.query.awaitTermination(DEADLINE)

    assert f"spark.SparkJDBCDataset {table}: " in str(there.failure)
    assert "units" in str(there.failure) and code.errors.is_final(there.failure)
    assert postgres.rows(f"SELECT * FROM {table}") == []


# --- what is refused before a stream starts ----------------------------------


def problems(dataset, schema) -> str:
    return " | ".join(dataset.problems(schema))


@pytest.mark.parametrize(
    ("config", "made", "answer"),
    [
        ({}, None, "does not exist; create it, or write create: true"),
        (
            {"create": True, "table": "nosuch.units"},
            None,
            "postgresql nosuch.units needs schema nosuch; CREATE SCHEMA nosuch",
        ),
        ({"keys": ["id"]}, None, "keys names id, and the rows have only sku, units"),
        ({"order_by": "at"}, None, "order_by names at, and the rows have only"),
        ({"add": ["cost"]}, None, "add names cost, and the rows have only"),
        ({}, "(sku text PRIMARY KEY)", "has no column units; add it there (ALTER"),
        ({}, "(sku text, units int)", "has no unique index on sku, so PostgreSQL"),
        (
            {},
            "(sku text, units int, UNIQUE (sku, units))",
            "has no unique index on sku",
        ),
        (
            {},
            "(sku text, units int, UNIQUE (sku) DEFERRABLE)",
            "has no unique index on sku",
        ),
        ({}, "(sku text, units int, UNIQUE (sku) INCLUDE (units))", None),
        (
            {"credentials": {"url": "jdbc:postgresql://127.0.0.1:1/a", "user": "b"}},
            None,
            "onnection refused",
        ),
        ({"keys": ["sku"], "order_by": "units"}, "(sku text UNIQUE, units int)", None),
        (
            {"keys": ["units"], "order_by": "sku"},
            "(sku int, units int UNIQUE)",
            "in postgresql {table}: as text, 9 comes after 10; cast it in the node",
        ),
        (
            {"keys": ["units"], "order_by": "sku"},
            "(sku date, units int UNIQUE)",
            "in postgresql {table}: as text, the order may be another; cast it in",
        ),
        ({"keys": ["units"], "order_by": "sku"}, "(sku text, units int UNIQUE)", None),
        ({}, "(sku uuid UNIQUE, units bigint)", None),
        ({}, "(sku text UNIQUE, units numeric, at timestamp DEFAULT now())", None),
        (
            {},
            "(sku text UNIQUE, units date)",
            "column units is int here and date there, where its values could change",
        ),
        ({}, "(sku text UNIQUE, units smallint)", None),  # too large is an error there
        ({}, "(sku text UNIQUE, units numeric(8, 2))", None),  # likewise
        (
            {},
            "(sku text UNIQUE, units int, id serial NOT NULL, aisle text NOT NULL)",
            "wants a value for aisle (NOT NULL, without a default), and the rows have",
        ),
    ],
)
def test_what_the_table_would_refuse_is_known_before(
    spark, postgres, upsert, table, config, made, answer
):
    if made:
        postgres.do(f"CREATE TABLE {table} {made}")
    schema = spark.createDataFrame([("A", 1)], "sku STRING, units INT").schema

    found = problems(upsert(**config), schema)

    assert answer.format(table=table) in found if answer else not found


def test_a_driver_that_spark_was_started_without_is_named(
    code, spark, upsert, table, monkeypatch
):
    checks = importlib.import_module("cold_store.extras.streams.checks")
    batches = code.datasets.MicroBatchDataset(
        datasets=[{"type": UPSERT, "file_format": "delta", "table": table, **KEYS}],
        save_args={"checkpoint": "a"},
    )
    both = {"there": batches, "absent": upsert()}
    assert not list(checks.unknown_formats(spark, both))
    monkeypatch.setitem(checks.plans.DRIVERS, "postgresql", "org.nowhere.Driver")

    (said,) = checks.unknown_formats(spark, both)

    assert "absent: file_format 'postgresql' needs the package org.postgresql:" in said


def test_a_wrong_password_is_said_in_a_sentence_without_it(spark, postgres, upsert):
    there = upsert(credentials={**postgres.credentials, "password": "open-sesame"})
    schema = spark.createDataFrame([("A", 1)], "sku STRING, units INT").schema

    found = problems(there, schema)

    assert 'password authentication failed for user "clerk"' in found
    assert "open-sesame" not in found + str(there) and PASSWORD not in found


def test_columns_that_postgresql_has_no_place_for_are_refused(spark, upsert):
    frame = spark.range(1).select(
        F.lit("A").cast(StringType()).alias("sku"), F.struct("id").alias("about")
    )

    found = problems(upsert(create=True), frame.schema)

    assert "column about is struct<id:bigint>, which PostgreSQL has no column" in found


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        ({"keys": []}, "keys is no list of columns, so no row could be told"),
        ({"add": ["sku"]}, "add names sku, which is a key or order_by"),
        ({"keys": ["sku", "sku"]}, "keys names sku twice; leave one out"),
        ({"create": "yes please"}, "create is 'yes please'; write true, or leave it"),
        ({"key": ["sku"]}, "key 'key' is not known here; did you mean keys?"),
        ({"add": "units"}, "add is no list of columns; write e.g. add: [units]"),
        ({"order_by": ["at"]}, "order_by is no name of a column; write e.g. order_by"),
        ({"credentials": {}}, "credentials need a url without name and password"),
        (
            {"credentials": {"url": "jdbc:postgresql://clerk:secret@a/b"}},
            "credentials need a url without name and password",
        ),
        (
            {"credentials": {"url": "jdbc:postgresql://a/b?user=c&password=secret"}},
            "credentials need a url without name and password",
        ),
    ],
)
def test_a_mistake_in_the_entry_is_refused_at_once(upsert, config, answer):
    with pytest.raises(DatasetError) as caught:
        upsert(**config)

    assert answer in str(caught.value) and "secret" not in str(caught.value)


def test_an_extra_that_is_not_installed_is_named(upsert, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(DatasetError, match="needs psycopg, which is not installed"):
        upsert()
