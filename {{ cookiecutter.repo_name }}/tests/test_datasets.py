"""The datasets, on real streams."""

import pytest
from kedro.io import DatasetError

from {{ cookiecutter.python_package }}.extras.datasets import (
    MicroBatchDataset,
    SparkStreamingDataset,
)

SCHEMA = "sku STRING, units INT"


@pytest.fixture
def source(tmp_path):
    """A folder with one file of two rows, as a stream."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text(
        '{"sku": "A", "units": 3}\n{"sku": "B", "units": 5}\n'
    )
    return SparkStreamingDataset(
        file_format="json", filepath=str(folder), load_args={"schema": SCHEMA}
    )


def sink(tmp_path, **save_args):
    """A folder of parquet files, with a checkpoint beside it."""
    return SparkStreamingDataset(
        file_format="parquet",
        filepath=str(tmp_path / "out"),
        save_args={
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": "available_now",
            **save_args,
        },
    )


def as_table(tmp_path):
    """What a sink has written so far."""
    return SparkStreamingDataset(
        file_format="parquet", filepath=str(tmp_path / "out"), streaming=False
    ).load()


def test_a_stream_goes_from_folder_to_folder_and_can_be_read_as_a_table(
    spark, source, tmp_path, rows
):
    dataset = sink(tmp_path)
    dataset.name = "my.stream"

    dataset.save(source.load())
    dataset.query.awaitTermination()

    assert dataset.query.name == "my.stream"
    assert rows(as_table(tmp_path)) == [
        {"sku": "A", "units": 3},
        {"sku": "B", "units": 5},
    ]


def test_a_second_start_writes_only_what_is_new(spark, source, tmp_path):
    dataset = sink(tmp_path)
    for name, count in [("1", 2), ("2", 3)]:
        (tmp_path / "in" / f"{name}.json").touch()
        if name == "2":
            (tmp_path / "in" / "2.json").write_text('{"sku": "C", "units": 1}\n')
        dataset.save(source.load())
        dataset.query.awaitTermination()
        assert as_table(tmp_path).count() == count


def test_a_held_stream_is_described_and_started_later(spark, source, tmp_path):
    dataset = sink(tmp_path)
    dataset.held = True

    dataset.save(source.load())
    assert dataset.query is None

    dataset.start(available_now=True).awaitTermination()
    assert as_table(tmp_path).count() == 2


def test_a_batch_goes_to_any_dataset_of_kedros(spark, source, tmp_path):
    dataset = MicroBatchDataset(
        datasets=[
            {"type": "pandas.CSVDataset", "filepath": str(tmp_path / "stock.csv")}
        ],
        save_args={
            "output_mode": "complete",
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": "available_now",
        },
    )

    dataset.save(source.load().groupBy("sku").sum("units"))
    dataset.query.awaitTermination()

    assert dataset.exists()
    assert dict(dataset.load().itertuples(index=False)) == {"A": 3, "B": 5}


def test_a_batch_frame_is_refused_by_a_stream_sink(spark, tmp_path):
    with pytest.raises(DatasetError, match="given a batch DataFrame, which ends"):
        sink(tmp_path).save(spark.range(3))


def test_arguments_are_never_changed_and_secrets_never_shown(tmp_path):
    save_args = {"checkpoint": "c", "topic": "t"}
    before = dict(save_args)

    dataset = SparkStreamingDataset(
        file_format="kafka", save_args=save_args, credentials={"token": "hunter2"}
    )

    assert save_args == before
    assert "hunter" not in str(dataset)
    with pytest.raises(DatasetError, match="put it into credentials.yml"):
        SparkStreamingDataset(
            file_format="kafka", load_args={"kafka.sasl.jaas.config": "hunter3"}
        )
