"""The datasets, over the whole surface of a catalog entry."""

import json
import os
import socket
import threading

import pytest
from conftest import ROWS, SCHEMA, finish, wait_until
from kedro.io import DataCatalog, DatasetError

STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "sku", "type": "string", "nullable": True, "metadata": {}},
        {"name": "units", "type": "integer", "nullable": True, "metadata": {}},
    ],
}


def pairs(frame):
    return sorted((row.sku, row.units) for row in frame.collect())


# --- sources and sinks -------------------------------------------------------


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet", "orc"])
def test_files_of_any_format_go_round(
    dataset, source, arguments, tmp_path, file_format
):
    there = dataset(
        file_format=file_format, filepath=str(tmp_path / "out"), save_args=arguments
    )
    there.save(source.load())
    finish(there)
    again = dataset(
        file_format=file_format,
        filepath=str(tmp_path / "out"),
        load_args={"schema": SCHEMA},
    )
    second = dataset(
        file_format="parquet",
        filepath=str(tmp_path / "again"),
        save_args={**arguments, "checkpoint": str(tmp_path / "second")},
    )

    second.save(again.load())
    finish(second)

    table = dataset(
        file_format="parquet", filepath=str(tmp_path / "again"), streaming=False
    )
    assert pairs(table.load()) == ROWS


def test_text_needs_no_schema(dataset, tmp_path):
    (tmp_path / "1.txt").write_text("one\ntwo\n")

    stream = dataset(file_format="text", filepath=str(tmp_path)).load()

    assert stream.isStreaming and stream.columns == ["value"]


@pytest.mark.parametrize(
    ("file_format", "options"),
    [
        ("rate", {"rowsPerSecond": 5}),
        ("rate-micro-batch", {"rowsPerBatch": 5}),
    ],
)
@pytest.mark.parametrize("sink", ["noop", "console", "memory"])
def test_sources_and_sinks_without_a_place(dataset, file_format, options, sink):
    there = dataset(file_format=sink)
    there.name = f"my.{sink}"

    there.save(dataset(file_format=file_format, load_args=options).load())
    try:
        wait_until(lambda: there.query.lastProgress, "a batch")
        assert there.query.exception() is None
        assert there.query.name == ("my_memory" if sink == "memory" else f"my.{sink}")
        assert there.exists() is False
    finally:
        there.query.stop()


def test_a_socket_can_be_read(dataset, spark):
    server = socket.create_server(("127.0.0.1", 0))
    greeting = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello\n"))
    greeting.start()
    there = dataset(file_format="memory", save_args={"query_name": "words"})

    there.save(
        dataset(
            file_format="socket",
            load_args={"host": "127.0.0.1", "port": server.getsockname()[1]},
        ).load()
    )
    try:
        wait_until(lambda: spark.table("words").count(), "a word")
        assert spark.table("words").first().value == "hello"
    finally:
        there.query.stop()
        greeting.join()
        server.close()


def test_a_table_can_be_written_and_read(dataset, source, arguments, spark):
    there = dataset(file_format="parquet", table="deliveries", save_args=arguments)
    assert there.exists() is False

    there.save(source.load())
    finish(there)

    assert there.exists() is True
    table = dataset(file_format="parquet", table="deliveries", streaming=False)
    assert pairs(table.load()) == ROWS
    assert there.load().isStreaming
    spark.sql("DROP TABLE deliveries")


def test_partitions_and_options_reach_spark(dataset, source, arguments, tmp_path):
    there = dataset(
        file_format="csv",
        filepath=str(tmp_path / "out"),
        save_args={**arguments, "partition_by": ["sku"], "sep": ";", "header": True},
    )
    there.save(source.load().selectExpr("*", "units * 2 AS double"))
    finish(there)

    file = next((tmp_path / "out/sku=A").glob("*.csv"))
    assert file.read_text().splitlines() == ["units;double", "3;6"]


def test_the_same_dataset_saves_twice(dataset, source, arguments, tmp_path):
    """Upstream's streaming dataset eats its own arguments the first time."""
    there = dataset(
        file_format="parquet", filepath=str(tmp_path / "out"), save_args=arguments
    )
    for _ in range(2):
        there.save(source.load())
        finish(there)

    table = dataset(
        file_format="parquet", filepath=str(tmp_path / "out"), streaming=False
    )
    assert pairs(table.load()) == ROWS


# --- triggers and modes ------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "spark_says"),
    [
        (None, "ProcessingTimeTrigger(0)"),
        ("10 seconds", "ProcessingTimeTrigger(10000)"),
        ("1 minute 30 seconds", "ProcessingTimeTrigger(90000)"),
        ("available_now", "AvailableNowTrigger"),
        ("once", "OneTimeTrigger"),
        ("continuous 1 second", "ContinuousTrigger(1000)"),
    ],
)
def test_a_trigger_is_understood(dataset, trigger, spark_says):
    there = dataset(
        file_format="noop", save_args={"trigger": trigger} if trigger else {}
    )

    there.save(dataset(file_format="rate").load())
    try:
        execution = there.query._jsq
        wrapped = getattr(execution, "streamingQuery", lambda: execution)()
        assert spark_says in wrapped.trigger().toString()
    finally:
        there.query.stop()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_an_aggregation_goes_where_its_mode_is_right(
    code, source, arguments, mode, tmp_path
):
    there = code.datasets.MicroBatchDataset(
        datasets=[
            {"type": "pandas.CSVDataset", "filepath": str(tmp_path / "a.csv")},
            {
                "type": "spark.SparkDatasetV2",
                "filepath": str(tmp_path / "b"),
                "save_args": {"mode": "overwrite"},
            },
        ],
        save_args={**arguments, "output_mode": mode},
    )

    there.save(source.load().groupBy("sku").sum("units").toDF("sku", "units"))
    finish(there)

    assert dict(there.load().itertuples(index=False)) == dict(ROWS)
    assert list((tmp_path / "b").glob("*.parquet"))


# --- schemas -----------------------------------------------------------------


def test_a_schema_may_be_a_mapping_or_a_file(dataset, source, tmp_path, monkeypatch):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(STRUCT))
    for schema in (STRUCT, {"filepath": str(file)}, {"filepath": f"file://{file}"}):
        stream = dataset(
            file_format="json",
            filepath=str(tmp_path / "in"),
            load_args={"schema": schema},
        ).load()
        assert stream.schema.simpleString() == "struct<sku:string,units:int>"


def test_without_a_schema_it_is_guessed_and_the_words_to_paste_are_logged(
    dataset, source, tmp_path, caplog
):
    guessing = dataset(file_format="json", filepath=str(tmp_path / "in"))

    stream = guessing.load()

    assert stream.columns == ["sku", "units"]
    assert "has no schema" in caplog.text
    assert "schema: sku STRING,units BIGINT" in caplog.text
    caplog.clear()
    guessing.load()
    assert caplog.text == "", "said once"


def test_a_stream_that_reads_what_an_entry_writes_knows_its_schema(
    dataset, source, arguments, tmp_path
):
    there = dataset(
        file_format="csv", filepath=str(tmp_path / "out"), save_args=arguments
    )
    (tmp_path / "out").mkdir()
    there.held = True
    there.save(source.load())

    assert there.load().schema.simpleString() == "struct<sku:string,units:int>"


def test_the_catalog_of_the_original_article_works(code, spark, source, tmp_path):
    """With only ``type`` changed: a JSON source without schema, a CSV sink."""
    kind = "cold_store.extras.datasets.SparkStreamingDataset"
    catalog = DataCatalog.from_config(
        {
            "raw.new_inventory": {
                "type": kind,
                "filepath": str(tmp_path / "in"),
                "file_format": "json",
            },
            "int.new_inventory": {
                "type": kind,
                "filepath": str(tmp_path / "out"),
                "file_format": "csv",
                "save_args": {
                    "output_mode": "append",
                    "checkpoint": str(tmp_path / "checkpoint"),
                    "header": True,
                },
                "load_args": {"header": True},
            },
        }
    )

    catalog.save("int.new_inventory", catalog.load("raw.new_inventory"))
    query = catalog["int.new_inventory"].query
    query.processAllAvailable()
    query.stop()

    written = [line for f in (tmp_path / "out").glob("*.csv") for line in f.open()]
    assert sorted(written) == ["A,3\n", "B,5\n", "sku,units\n"]


# --- places ------------------------------------------------------------------


def test_paths_are_absolute_whatever_the_current_folder(code, tmp_path, monkeypatch):
    monkeypatch.setattr(code.session._State, "project_path", tmp_path)
    monkeypatch.chdir("/")

    there = code.datasets.SparkStreamingDataset(
        file_format="csv", filepath="data/out", save_args={"checkpoint": "data/c"}
    )

    assert there.filepath == f"{tmp_path}/data/out"
    assert there.checkpoint == f"{tmp_path}/data/c"


@pytest.mark.parametrize(
    "path", ["s3a://bucket/a", "hdfs://host/a", "dbfs:/a", "abfss://c@host/a"]
)
def test_remote_paths_are_left_alone(code, path):
    there = code.datasets.SparkStreamingDataset(
        file_format="csv", filepath=path, save_args={"checkpoint": f"{path}_checkpoint"}
    )

    assert (there.filepath, there.checkpoint) == (path, f"{path}_checkpoint")


def test_exists_tells_the_truth_about_folders(dataset, tmp_path):
    for name in ("there", "absent"):
        asked = dataset(file_format="csv", filepath=str(tmp_path / name))
        if name == "there":
            os.mkdir(tmp_path / name)
        assert asked.exists() is (name == "there")


# --- what is kept and what is hidden -----------------------------------------


def test_credentials_are_used_and_never_shown(dataset, spark, tmp_path):
    (tmp_path / "1.csv").write_text("A;3\n")
    secret = dataset(
        file_format="csv",
        filepath=str(tmp_path),
        streaming=False,
        load_args={"schema": SCHEMA, "fs.s3a.secret.key": "hunter2"},
        credentials={"sep": ";"},
    )

    assert pairs(secret.load()) == [("A", 3)]
    assert "hunter2" not in str(secret) + repr(secret)
    assert "sep" not in str(secret)


def test_arguments_are_never_changed(dataset, source, arguments, tmp_path):
    load_args, save_args = {"schema": SCHEMA}, dict(arguments)

    there = dataset(
        file_format="parquet",
        filepath=str(tmp_path / "out"),
        load_args=load_args,
        save_args=save_args,
    )
    there.save(source.load())
    finish(there)

    assert (load_args, save_args) == ({"schema": SCHEMA}, arguments)


def test_a_catalog_survives_being_written_down(code, tmp_path):
    """``to_config`` is how Kedro and its plugins copy a catalog."""
    config = {
        "a": {
            "type": "cold_store.extras.datasets.SparkStreamingDataset",
            "file_format": "csv",
            "filepath": str(tmp_path),
        }
    }
    catalog = DataCatalog.from_config(config)
    assert catalog["a"]

    again = DataCatalog.from_config(*catalog.to_config())

    assert again["a"].filepath == str(tmp_path)


def test_an_entry_that_is_read_as_a_table_cannot_be_written(dataset, source, tmp_path):
    table = dataset(
        file_format="parquet", filepath=str(tmp_path / "out"), streaming=False
    )

    with pytest.raises(DatasetError, match="streaming: false, so it can only be read"):
        table.save(source.load())
