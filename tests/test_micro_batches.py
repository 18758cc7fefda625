"""Batches of a stream, given to datasets, functions and row writers."""

import importlib
import json
import sys

import pandas
import pyarrow.parquet
import pytest
from conftest import ROWS, finish, forget_newest_commit
from kedro.io import DatasetError
from pyspark.sql import functions as F
from shell import DEADLINE

WRITERS = '''
"""What a user might write a batch with."""

import json
from pathlib import Path

import pandas
import pyarrow
from kedro.io import AbstractDataset
from pyspark.sql import DataFrame


def write(batch, batch_id, folder="", credentials=None):
    rows = [list(row) for row in batch.collect()]
    said = {"rows": rows, "by": (credentials or {}).get("user")}
    Path(folder, f"{batch_id}.json").write_text(json.dumps(said))


class Lines:
    """Each partition into a file of its own, which a replay overwrites."""

    def __init__(self, folder):
        self._folder = Path(folder)

    def open(self, partition_id, batch_id):
        self._file = (self._folder / f"{batch_id}-{partition_id}.txt").open("w")
        return True

    def process(self, row):
        if row.units < 0:
            raise ValueError(f"{row.sku} has less than nothing")
        self._file.write(f"{row.sku} {row.units}\\\\n")

    def close(self, error):
        self._file.write(f"closed by {type(error).__name__}\\\\n")
        self._file.close()


class OnlyProcess:
    def process(self, row):
        Path(row.sku).write_text(str(row.units))


class Unwilling:
    def open(self, partition_id, batch_id):
        return False

    def process(self, row):
        raise AssertionError("it did not open")


class SQLTableDataset(AbstractDataset):
    """Called as pandas' own, which needs a library that is not here."""

    def save(self, data: pandas.DataFrame) -> None:
        raise NotImplementedError

    def load(self):
        raise NotImplementedError

    def _describe(self):
        return {}


class Either(AbstractDataset):
    def save(self, data: pandas.DataFrame | DataFrame) -> None:
        raise NotImplementedError

    def load(self):
        raise NotImplementedError

    def _describe(self):
        return {}


class ArrowFile(AbstractDataset):
    def __init__(self, filepath):
        self._file = filepath

    def save(self, data: pyarrow.Table) -> None:
        assert isinstance(data, pyarrow.Table)
        Path(self._file).write_text(json.dumps(data.to_pylist()))

    def load(self):
        return json.loads(Path(self._file).read_text())

    def _describe(self):
        return {}
'''.replace("\\\\", "\\")

TOTALS = {
    "type": "cold_store.extras.datasets.UpsertDataset",
    "file_format": "delta",
    "filepath": "totals",
    "keys": ["sku"],
}


UNITS = {
    "type": "cold_store.extras.datasets.UpsertDataset",
    "file_format": "postgresql",
    "table": "units",
    "keys": ["sku"],
    "credentials": {"url": "jdbc:postgresql://127.0.0.1:5432/a"},
}
MIRROR = {**UNITS, "credentials": {"url": "jdbc:postgresql://127.0.0.2:5432/a"}}
USUAL_PORT = {"url": "jdbc:postgresql://127.0.0.1/a?ssl=false"}
MARIA = {"url": "jdbc:mariadb://127.0.0.1/a"}
LAST = {"type": "spark.SparkDatasetV2", "filepath": "a/{batch_id}"}
ANEW = {"save_args": {"mode": "overwrite"}}
HIVE = {"database": "shop", "table": "stock"}
JDBC = {"type": "spark.SparkJDBCDataset", "table": "a", "credentials": MARIA}


@pytest.fixture(scope="module")
def writers(code, pristine):
    """A module of the generated project with code of the user's."""
    file = pristine.folder / "src/cold_store/writers.py"
    file.write_text(WRITERS)
    yield importlib.import_module("cold_store.writers")
    file.unlink()
    del sys.modules["cold_store.writers"]


@pytest.fixture
def batches(code, spark, arguments):
    """Build a sink of batches."""

    def build(*datasets, **config):
        given = {"datasets": list(datasets)} if datasets else {}
        there = {"save_args": arguments, **given, **config}
        return code.datasets.MicroBatchDataset(**there)

    return build


def failure(dataset) -> Exception:
    """Wait for a stream to fail, and return why."""
    with pytest.raises(Exception):  # noqa: B017 - Spark's, with the cause as a text
        dataset.query.awaitTermination(DEADLINE)
    return dataset.failure


# --- datasets ----------------------------------------------------------------


def test_each_dataset_gets_the_frame_that_its_save_takes(
    batches, writers, source, tmp_path
):
    there = batches(
        {
            "type": "pandas.ParquetDataset",
            "filepath": str(tmp_path / "batch_id={batch_id}.parquet"),
        },
        {"type": "polars.CSVDataset", "filepath": str(tmp_path / "polars.csv")},
        {"type": "cold_store.writers.ArrowFile", "filepath": str(tmp_path / "a.json")},
        {
            "type": "spark.SparkDatasetV2",
            "filepath": str(tmp_path / "spark"),
            "save_args": {"mode": "overwrite"},
        },
    )

    there.save(source.load())
    finish(there)

    frame = pandas.read_parquet(tmp_path / "batch_id=0.parquet")
    assert [tuple(row) for row in frame.itertuples(index=False)] == ROWS
    assert (tmp_path / "polars.csv").read_text() == "sku,units\nA,3\nB,5\n"
    stored = json.loads((tmp_path / "a.json").read_text())
    assert stored == [{"sku": "A", "units": 3}, {"sku": "B", "units": 5}]
    assert pyarrow.parquet.read_table(tmp_path / "spark").num_rows == len(ROWS)


def test_a_batch_that_comes_again_overwrites_itself_alone(batches, source, tmp_path):
    """The commit of the last batch is gone, as after a crash before it."""
    where = {"filepath": str(tmp_path / "batch_id={batch_id}" / "rows.csv")}
    named = {"save_args": {"index": True, "index_label": "row of {batch_id}"}}
    there = batches({"type": "pandas.CSVDataset", **where, **named})
    there.save(source.load())
    finish(there)
    for sku in ("C", "D"):
        row = json.dumps({"sku": sku, "units": 1})
        (tmp_path / "in" / f"{sku}.json").write_text(row)
        there.save(source.load())
        finish(there)
    forget_newest_commit(tmp_path / "checkpoint")

    there.save(source.load())
    finish(there)

    files = sorted(tmp_path.glob("batch_id=*/rows.csv"))
    found = [f.read_text().splitlines() for f in files]
    begin = [f"row of {number},sku,units" for number in range(3)]
    assert [heading for heading, *_ in found] == begin
    assert [rows for _, *rows in found] == [["0,A,3", "1,B,5"], ["0,C,1"], ["0,D,1"]]


def test_what_is_stored_by_batch_cannot_be_loaded_as_one(batches, tmp_path):
    there = batches({"type": "pandas.CSVDataset", "filepath": "a/{batch_id}.csv"})

    assert not there.exists()
    with pytest.raises(DatasetError, match="read them with an entry of its own"):
        there.load()


def test_a_failure_in_one_of_several_fails_the_batch_and_a_replay_writes_all(
    batches, source, tmp_path
):
    in_the_way = tmp_path / "second.csv"
    in_the_way.mkdir()
    config = [
        {"type": "pandas.CSVDataset", "filepath": str(tmp_path / f"{name}.csv")}
        for name in ("first", "second")
    ]
    there = batches(*config)
    there.save(source.load())

    reason = str(failure(there))

    assert reason.startswith(f"pandas.CSVDataset {in_the_way}: ")
    assert "Is a directory" in reason
    (tmp_path / "first.csv").unlink()
    in_the_way.rmdir()
    again = batches(*config)
    again.save(source.load())
    finish(again)
    for name in ("first", "second"):
        assert (tmp_path / f"{name}.csv").read_text() == "sku,units\nA,3\nB,5\n"


def test_a_batch_is_computed_once_for_all_datasets(batches, source, tmp_path):
    log = tmp_path / "computed"

    def note(units):
        with log.open("a") as file:
            file.write(f"{units}\n")
        return units

    there = batches(
        *[
            {"type": "pandas.CSVDataset", "filepath": str(tmp_path / f"{name}.csv")}
            for name in ("first", "second")
        ]
    )
    noted = F.udf(note, "int")("units").alias("units")
    there.save(source.load().select("sku", noted))
    finish(there)

    assert sorted(log.read_text().split()) == ["3", "5"]
    assert (tmp_path / "second.csv").read_text() == "sku,units\nA,3\nB,5\n"


def test_a_library_that_is_not_installed_is_named(batches, monkeypatch):
    writing = importlib.import_module("cold_store.extras.datasets.batch_writers")
    monkeypatch.setattr(writing, "find_spec", lambda name: None)

    with pytest.raises(DatasetError, match="needs pyarrow, which is not installed"):
        batches({"type": "pandas.ParquetDataset", "filepath": "a/{batch_id}.parquet"})


def test_a_dataset_that_takes_spark_or_pandas_is_given_sparks_frame(batches, writers):
    (writer,) = batches({"type": "cold_store.writers.Either"})._writers
    assert writer._as_wanted("a frame") == "a frame"


# --- functions and row writers -----------------------------------------------


def test_a_function_names_the_formats_that_it_writes(batches, writers):
    named = batches(
        function="cold_store.writers.write",
        arguments={"folder": "a"},
        formats=["delta"],
    )
    assert named.formats == {"delta"}


def test_a_function_is_given_batch_number_and_what_the_catalog_says(
    batches, writers, source, tmp_path
):
    there = batches(
        function="cold_store.writers.write",
        arguments={"folder": str(tmp_path)},
        credentials={"user": "clerk", "password": "hidden"},
    )

    there.save(source.load())
    finish(there)

    said = json.loads((tmp_path / "0.json").read_text())
    assert said == {"rows": [["A", 3], ["B", 5]], "by": "clerk"}
    assert "hidden" not in str(there)
    with pytest.raises(DatasetError, match="writes and does not read"):
        there.load()


def test_a_row_writer_is_opened_fed_and_closed(batches, writers, source, tmp_path):
    (tmp_path / "lines").mkdir()
    there = batches(
        foreach="cold_store.writers.Lines",
        arguments={"folder": str(tmp_path / "lines")},
    )

    there.save(source.load())
    finish(there)

    (file,) = (tmp_path / "lines").glob("0-*.txt")
    assert file.read_text() == "A 3\nB 5\nclosed by NoneType\n"


def test_a_row_writer_that_fails_is_closed_with_the_error(
    batches, writers, source, tmp_path
):
    (tmp_path / "in/2.json").write_text('{"sku": "C", "units": -1}')
    (tmp_path / "lines").mkdir()
    there = batches(
        foreach="cold_store.writers.Lines",
        arguments={"folder": str(tmp_path / "lines")},
    )
    there.save(source.load())

    reason = str(failure(there))

    assert "ValueError: C has less than nothing" in reason
    texts = [f.read_text() for f in (tmp_path / "lines").glob("*.txt")]
    assert any(text.endswith("closed by ValueError\n") for text in texts)


def test_a_row_writer_may_decline_and_needs_neither_open_nor_close(
    batches, writers, source, tmp_path
):
    (tmp_path / "in/1.json").write_text(
        json.dumps({"sku": str(tmp_path / "row"), "units": 7})
    )
    for foreach, name in (("Unwilling", "one"), ("OnlyProcess", "two")):
        checkpoint = {"checkpoint": str(tmp_path / name), "trigger": "available_now"}
        there = batches(foreach=f"cold_store.writers.{foreach}", save_args=checkpoint)
        there.save(source.load())
        finish(there)

    assert (tmp_path / "row").read_text() == "7"


# --- what is refused, and what is warned about -------------------------------


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        ({}, "datasets is empty, so batches would go nowhere"),
        ({"datasets": {"type": "pandas.CSVDataset"}}, "datasets is no list; begin"),
        ({"datasets": ["stock"]}, "'stock' under datasets is no dataset; begin each"),
        (
            {"datasets": [{"type": "pandas.CSVDatset", "filepath": "a"}]},
            "pandas.CSVDatset under datasets cannot be built: Dataset "
            "'CSVDatset' not found in 'pandas'; correct the name, or, if it is right, "
            "type: pip install 'kedro-datasets[pandas-csvdatset]'",
        ),
        (
            {"datasets": [{"type": "MemoryDataset"}]},
            "MemoryDataset under datasets would keep the newest batch until the run",
        ),
        (
            {
                "datasets": [
                    {"type": "pandas.CSVDataset", "filepath": "a/{batchId}.csv"}
                ]
            },
            "{batchId} stays as it is, in pandas.CSVDataset ",
        ),
        (
            {"datasets": [{"type": "pandas.CSVDataset", "file": "a"}]},
            "pandas.CSVDataset under datasets cannot be built: ",
        ),
        (
            {
                "datasets": [
                    {"type": "pandas.CSVDataset", "filepath": "a", "versioned": True}
                ]
            },
            "/a is versioned, and a batch that is replayed would",
        ),
        (
            {
                "datasets": [
                    {
                        "type": "cold_store.extras.datasets.SparkStreamingDataset",
                        "file_format": "noop",
                    }
                ]
            },
            "is a dataset for streams, and a batch ends; make it an entry of its own",
        ),
        (
            {"datasets": [{"type": "spark.SparkDatasetV2", "filepath": "a"}]},
            "has no mode, and then refuses to write where something is, so that",
        ),
        (
            {"datasets": [{**LAST, "save_args": {"mode": "ignore"}}]},
            "has mode: ignore, which writes nothing where something is, so that all",
        ),
        (
            {
                "datasets": [
                    {
                        **LAST,
                        "load_args": {"mode": "PERMISSIVE"},
                        "save_args": {"mode": "Ignore"},
                    }
                ]
            },
            "has mode: ignore, which writes nothing where something is, so that all",
        ),
        (
            {"datasets": [{**LAST, "save_args": {"mode": "overwrit"}}]},
            "has mode: overwrit, which Spark does not know; write mode: overwrite under",
        ),
        (
            {"datasets": [{**LAST, "save_args": {"mode": "error"}}]},
            "has mode: error, and then refuses to write where something is",
        ),
        (
            {"datasets": [{"type": "cold_store.writers.SQLTableDataset"}]},
            "has no if_exists, and then refuses to write where something is, so that "
            "the second batch or a replay would fail; write if_exists: replace under",
        ),
        (
            {"datasets": [{"credentials": {"password": "hidden"}, "Type": "a"}]},
            "a mapping of credentials, Type under datasets is no dataset; begin each",
        ),
        (
            {
                "datasets": [
                    {
                        "type": "partitions.PartitionedDataset",
                        "path": "a",
                        "dataset": "pandas.CSVDataset",
                        "overwrite": True,
                    }
                ]
            },
            "PartitionedDataset under datasets saves a dict, and a batch can be a frame",
        ),
        (
            {"datasets": [{"type": "yaml.YAMLDataset", "filepath": "a"}]},
            "YAMLDataset under datasets saves a dict, and a batch can be a frame of",
        ),
        (
            {"datasets": [{"type": "json.JSONDataset", "filepath": "a"}]},
            "JSONDataset under datasets saves a plain object of Python's, and a batch",
        ),
        (
            {
                "datasets": [
                    {"type": "pandas.CSVDataset", "filepath": "a", "credentials": "b"}
                ]
            },
            "/a are not known; add b: to credentials.yml of the environment",
        ),
        (
            {
                "datasets": [
                    {"type": "pandas.CSVDataset", "filepath": "a/b={batch_id}.csv"},
                    {"type": "pandas.JSONDataset", "filepath": "a/b={batch_id}.csv"},
                ]
            },
            "/a/b={batch_id}.csv is there twice under datasets, and the second would",
        ),
        (
            {
                "datasets": [{**LAST, "filepath": "a", **ANEW}],
                "save_args": {"checkpoint": "a/_checkpoint"},
            },
            "which every batch writes anew, so that it would be deleted; put it beside",
        ),
        (
            {
                "datasets": [
                    {**LAST, "filepath": "a", **ANEW},
                    {"type": "pandas.CSVDataset", "filepath": "a/b={batch_id}.csv"},
                ]
            },
            "/a, which every batch writes anew, so that it would be deleted; give each",
        ),
        (
            {"datasets": [{**LAST, "filepath": "s3a://shop/{batch_id}"}]},
            "cannot be built: s3fs not installed. Install with: pip install 'kedro-datasets[spark-s3]' or pip",
        ),
        (
            {"datasets": [{"type": "spark.SparkHiveDataset", **HIVE}]},
            "no write_mode, and then refuses to write where something is, so that the "
            "second batch or a replay would fail; write write_mode: overwrite",
        ),
        (
            {"datasets": [TOTALS, TOTALS]},
            "/totals is there twice under datasets, and takes in every batch only once",
        ),
        (
            {"datasets": [UNITS, {**UNITS, "table": "public.units"}]},
            "postgresql public.units is there twice under datasets",
        ),
        (
            {"datasets": [UNITS, {**UNITS, "credentials": USUAL_PORT}]},
            "postgresql units is there twice under datasets",
        ),
        (
            {
                "datasets": [{**TOTALS, "add": ["units"]}],
                "save_args": {"output_mode": "update", "checkpoint": "a"},
            },
            "add with output_mode: update would add totals, which come again",
        ),
        ({"function": "cold_store.nowhere.write"}, "cannot be imported"),
        ({"function": 7}, "function 7 cannot be imported"),
        (
            {"function": "cold_store.writers.write", "arguments": {"colour": 1}},
            "cold_store.writers.write cannot be called with a batch, its number and the "
            "keys under arguments (colour)",
        ),
        (
            {"foreach": "cold_store.writers.write"},
            "foreach 'cold_store.writers.write' has no method process(row)",
        ),
        (
            {"foreach": "cold_store.writers.Lines"},
            "cold_store.writers.Lines cannot be called with the keys under arguments "
            "(none): missing a required argument: 'folder'",
        ),
        (
            {"function": "cold_store.writers.write", "foreach": "a.B"},
            "function and foreach exclude each other",
        ),
        (
            {
                "datasets": [{"type": "pandas.CSVDataset", "filepath": "a"}],
                "arguments": {"folder": "a"},
            },
            "arguments and credentials are for function and foreach",
        ),
        (
            {"functon": "cold_store.writers.write"},
            "key 'functon' is not known here; did you mean function?",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_to_write(batches, writers, config, answer):
    with pytest.raises(DatasetError) as caught:
        batches(**config)

    assert answer in str(caught.value) and "hidden" not in str(caught.value)


def test_a_mirror_on_another_server_is_no_second_writer_of_the_table(batches):
    assert batches(UNITS, MIRROR).formats == {"postgresql"}


DYNAMIC = {"partitionOverwriteMode": "dynamic"}


@pytest.mark.parametrize(
    ("options", "settings", "keeps"),
    [
        ({}, {}, False),
        ({"partitionBy": "sku"}, {}, False),
        (DYNAMIC, {}, False),
        ({"partitionBy": "sku", **DYNAMIC}, {}, True),
        (
            {"partitionBy": "sku"},
            {"spark.sql.sources.partitionOverwriteMode": "DYNAMIC"},
            True,
        ),
    ],
)
def test_partitions_are_kept_if_spark_is_told_to_keep_them(
    code, batches, monkeypatch, tmp_path, options, settings, keeps
):
    """Two streams may then write into one folder; Spark otherwise empties it."""
    monkeypatch.setattr(code.session._State, "settings", settings)
    there = str(tmp_path / "stock")
    entry = {"filepath": there, "save_args": {"mode": "overwrite", **options}}

    sink = batches({"type": "spark.SparkDatasetV2", **entry})

    assert sink.overwritten == ([] if keeps else [there])
    assert bool(list(sink.hazards())) is not keeps


def test_what_wrapped_datasets_need_of_spark_is_known(batches):
    there = batches(
        {**LAST, "file_format": "delta", "save_args": {"mode": "overwrite"}},
        {**JDBC, "save_args": {"mode": "append"}},
    )

    assert there.formats == {"delta", "mariadb"} and there.databases == {"mariadb"}


@pytest.mark.parametrize(
    ("config", "mode", "warning"),
    [
        (
            {"save_args": {"mode": "a"}},
            "append",
            "appends, so a batch that is replayed",
        ),
        (
            {"fs_args": {"open_args_save": {"mode": "ab"}}},
            "append",
            "appends, so a batch that is replayed",
        ),
        ({}, "append", "holds no more than the newest batch"),
        ({}, "complete", None),
        ({"filepath": "{batch_id}.csv"}, "append", None),
        (
            {"filepath": "{batch_id}.csv", "save_args": {"mode": "a"}},
            "append",
            "appends, so a batch that is replayed",
        ),
        (
            {**JDBC, "save_args": {"mode": "overwrite"}},
            "update",
            "holds no more than the newest batch",
        ),
        ({**JDBC, "save_args": {"mode": "overwrite"}}, "complete", None),
        (TOTALS, "append", None),
    ],
)
def test_what_a_replay_would_double_or_replace_is_warned_about(
    batches, arguments, config, mode, warning
):
    csv = {"type": "pandas.CSVDataset", "filepath": "a.csv"}
    there = batches(
        config if "type" in config else {**csv, **config},
        save_args={**arguments, "output_mode": mode},
    )

    warnings = " ".join(there.hazards())

    assert warning in warnings if warning else not warnings
