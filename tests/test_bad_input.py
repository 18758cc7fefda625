"""Each mistake gets a sentence before any stream starts, and nothing is written."""

import json
import shutil

import pytest
import yaml
from click import ClickException
from conftest import Project, run_in_process

STREAM = "cold_store.extras.datasets.SparkStreamingDataset"
BATCHES = "cold_store.extras.datasets.MicroBatchDataset"

READINGS = {
    "type": STREAM,
    "file_format": "csv",
    "filepath": "data/01_raw/stream/sensor/",
    "load_args": {"schema": "sensor_id STRING, value DOUBLE, read_at TIMESTAMP"},
}
AVERAGES = {
    "type": STREAM,
    "file_format": "csv",
    "filepath": "data/03_primary/sensor/",
    "save_args": {"checkpoint": "data/04_checkpoint/processed_sensor"},
}
STOCK = {
    "type": BATCHES,
    "datasets": [
        {"type": "pandas.CSVDataset", "filepath": "data/03_primary/stock.csv"}
    ],
    "save_args": {
        "output_mode": "complete",
        "checkpoint": "data/04_checkpoint/processed_stock",
    },
}


def readings(**changes):
    """The source of the sensor pipeline, with a mistake."""
    return {"raw.sensor": READINGS | changes}


def averages(**changes):
    """The sink of the sensor pipeline, with a mistake."""
    return {"processed.sensor": AVERAGES | changes}


def averages_saved(**save_args):
    """The sink of the sensor pipeline, with a mistake under save_args."""
    return averages(save_args=AVERAGES["save_args"] | save_args)


def stock_saved(**save_args):
    """The sink of the shelves, with a mistake under save_args."""
    return {"processed.stock": STOCK | {"save_args": STOCK["save_args"] | save_args}}


def with_schema(schema):
    return readings(load_args={"schema": schema})


MISTAKES = {
    "unknown source format": (
        readings(file_format="jsn", filepath=None),
        "raw.sensor: file_format 'jsn' is not known to Spark; correct it, or, if it "
        "comes in a package of its own, add it to conf/base/spark.yml under packages",
    ),
    "unknown sink format": (
        averages(file_format="parkay"),
        "processed.sensor: file_format 'parkay' is not known to Spark",
    ),
    "no broker": (
        readings(file_format="kafka", filepath=None, load_args={"subscribe": "a"}),
        "raw.sensor: no broker is named; add kafka.bootstrap.servers: host:port",
    ),
    "file format without filepath": (
        readings(filepath=None),
        "file_format 'csv' needs a folder to read from or write to; add filepath",
    ),
    "filepath for what has none": (
        readings(file_format="rate"),
        "file_format 'rate' is not stored anywhere, so filepath and table mean nothing",
    ),
    "filepath and table": (
        averages(table="a"),
        "filepath and table exclude each other; write one of them",
    ),
    "missing folder": (
        readings(filepath="data/01_raw/nowhere"),
        "data/01_raw/nowhere does not exist, and a stream of files watches a folder; "
        "create it, or correct filepath",
    ),
    "empty folder without schema": (
        readings(filepath="data/01_raw/empty", load_args={}),
        "there is no schema, and folder {project}/data/01_raw/empty has no files to "
        "guess it from; write it down, e.g. schema: sku STRING, units INT",
    ),
    "wrong DDL": (
        with_schema("sensor_id STRNG"),
        "schema 'sensor_id STRNG' is not understood",
    ),
    "missing schema file": (
        with_schema({"filepath": "conf/base/nowhere.json"}),
        "schema file {project}/conf/base/nowhere.json does not exist; correct the "
        "filepath under schema",
    ),
    "schema file that is not JSON": (
        with_schema({"filepath": "conf/base/catalog.yml"}),
        "schema file {project}/conf/base/catalog.yml is not JSON",
    ),
    "schema file that is not a schema": (
        with_schema({"filepath": "data/01_raw/other.json"}),
        "schema file {project}/data/01_raw/other.json is JSON but not a schema; it "
        "should hold what frame.schema.json() gives",
    ),
    "schema mapping that is not a schema": (
        with_schema({"sku": "string"}),
        "schema is JSON but not a schema; it should hold what frame.schema.json()",
    ),
    "unknown key, nearly right": (
        readings(load_arg={"header": True}),
        "key 'load_arg' is not known here; did you mean load_args?",
    ),
    "unknown key of a run": (
        averages(checkpoint="data/c"),
        "key 'checkpoint' is not known here; put it under save_args",
    ),
    "unknown key": (
        readings(colour="blue"),
        "key 'colour' is not known here; known: file_format, filepath, table",
    ),
    "trigger among reader options": (
        readings(load_args={"trigger": "10 seconds"}),
        "'trigger' does nothing in load_args, because it is about writing; write "
        "trigger under save_args",
    ),
    "misspelt reader option": (
        readings(load_args={"maxFilePerTrigger": 1}),
        "'maxFilePerTrigger' in load_args would be ignored by Spark; write "
        "maxFilesPerTrigger",
    ),
    "checkpointLocation": (
        averages_saved(checkpointLocation="data/c"),
        "'checkpointLocation' in save_args would be ignored by Spark; write checkpoint",
    ),
    "outputMode": (
        averages_saved(outputMode="append"),
        "'outputMode' in save_args would be ignored by Spark; write output_mode",
    ),
    "queryName": (
        averages_saved(queryName="a"),
        "'queryName' in save_args would be ignored by Spark; write query_name",
    ),
    "processingTime": (
        averages_saved(processingTime="1 second"),
        "'processingTime' in save_args would be ignored by Spark; write trigger: 10",
    ),
    "misspelt trigger": (
        averages_saved(triger="1 second"),
        "'triger' in save_args would be ignored by Spark; write trigger",
    ),
    "reader option among writer options": (
        averages_saved(maxFilesPerTrigger=1),
        "'maxFilesPerTrigger' does nothing in save_args, because it is about reading",
    ),
    "invalid output mode": (
        averages_saved(output_mode="overwrite"),
        "output_mode 'overwrite' does not exist; write append, update or complete",
    ),
    "append of an aggregation without watermark": (
        stock_saved(output_mode="append"),
        "processed.stock: output_mode 'append' writes a group once it can no longer "
        "change, and without a watermark no group ever can; add .withWatermark",
    ),
    "update into files": (
        averages_saved(output_mode="update"),
        "output_mode 'update' does not work with file_format 'csv', because files are "
        "only ever added, never rewritten; set output_mode: append",
    ),
    "complete into files": (
        averages_saved(output_mode="complete"),
        "output_mode 'complete' does not work with file_format 'csv'",
    ),
    "missing checkpoint": (
        averages(save_args={"header": True}),
        "a stream that writes here needs a checkpoint, because without one a restart "
        "would write everything again; add checkpoint: data/04_checkpoint/",
    ),
    "missing save_args": (
        averages(save_args={}),
        "processed.sensor: a stream that writes here needs a checkpoint",
    ),
    "two sinks with one checkpoint": (
        averages_saved(checkpoint="data/04_checkpoint/processed_stock"),
        "processed.sensor and processed.stock have one checkpoint, "
        "{project}/data/04_checkpoint/processed_stock, and one would stop the other",
    ),
    "checkpoint equal to the output": (
        averages_saved(checkpoint="data/03_primary/sensor"),
        "checkpoint {project}/data/03_primary/sensor is, or contains, the output folder",
    ),
    "checkpoint above the output": (
        averages_saved(checkpoint="data/03_primary"),
        "checkpoint {project}/data/03_primary is, or contains, the output folder",
    ),
    "two sinks with one query name": (
        averages_saved(query_name="processed.stock"),
        "processed.sensor and processed.stock have one query name, processed.stock",
    ),
    "two sinks with one folder": (
        averages(filepath="data/02_intermediate/inventory/"),
        "int.new_inventory and processed.sensor have one filepath",
    ),
    "batches written over those of another stream": (
        {
            "processed.sensor": {
                "type": "cold_store.extras.datasets.MicroBatchDataset",
                "datasets": [
                    {
                        "type": "pandas.CSVDataset",
                        "filepath": "data/03_primary/stock.csv",
                    }
                ],
                "save_args": {"checkpoint": "data/04_checkpoint/processed_sensor"},
            }
        },
        "processed.sensor and processed.stock have one filepath",
    ),
    "batches written over all those of another stream": (
        {
            "processed.sensor": {
                "type": "cold_store.extras.datasets.MicroBatchDataset",
                "datasets": [
                    {
                        "type": "spark.SparkDatasetV2",
                        "filepath": "data/03_primary",
                        "save_args": {"mode": "overwrite"},
                    }
                ],
                "save_args": {"checkpoint": "data/04_checkpoint/processed_sensor"},
            }
        },
        "processed.stock keeps {project}/data/03_primary/stock.csv inside "
        "{project}/data/03_primary, which is processed.sensor's alone",
    ),
    "batches written over the checkpoints of others": (
        {
            "processed.sensor": {
                "type": "cold_store.extras.datasets.MicroBatchDataset",
                "datasets": [
                    {
                        "type": "spark.SparkDatasetV2",
                        "filepath": "data/04_checkpoint",
                        "save_args": {"mode": "overwrite"},
                    }
                ],
                "save_args": {"checkpoint": "data/05_checkpoint/processed_sensor"},
            }
        },
        "processed.stock keeps {project}/data/04_checkpoint/processed_stock inside "
        "{project}/data/04_checkpoint, which is processed.sensor's alone",
    ),
    "invalid trigger": (
        averages_saved(trigger="10 parsecs"),
        "trigger '10 parsecs' is no interval; write an interval as a number and a unit",
    ),
    "negative interval": (
        averages_saved(trigger="-5 seconds"),
        "trigger '-5 seconds' is negative, and time does not run backwards",
    ),
    "unknown trigger kind": (
        averages_saved(trigger="sometimes"),
        "trigger 'sometimes' does not exist; write an interval (10 seconds), "
        "available_now, once, continuous 1 second",
    ),
    "trigger as a mapping": (
        averages_saved(trigger={"availableNow": True}),
        "is not a text; write an interval (10 seconds), available_now",
    ),
    "real time on a Spark without it": (
        averages_saved(trigger="real_time 5 seconds"),
        "trigger real_time does not exist in Spark 4.0.0; write a short interval",
    ),
    "continuous with state": (
        averages_saved(trigger="continuous 1 second"),
        "processed.sensor: Spark cannot run this in output_mode 'append': "
        "Continuous processing does not support",
    ),
    "trigger with more than its name": (
        averages_saved(trigger="once upon a time"),
        "trigger 'once upon a time' does not exist; write an interval",
    ),
    "continuous without an interval": (
        averages_saved(trigger="continuous"),
        "trigger 'continuous' does not exist; write an interval (10 seconds)",
    ),
    "a source as a sink": (
        averages(file_format="rate", filepath=None),
        "file_format 'rate' can be read, not written; choose another, e.g. parquet",
    ),
    "batch frame into a stream sink": (
        readings(streaming=False),
        "this is a sink for streams and was given a batch DataFrame, which ends",
    ),
    "stream into a batch dataset": (
        {
            "processed.sensor": {
                "type": "pandas.CSVDataset",
                "filepath": "data/03_primary/sensor.csv",
            }
        },
        "CSVDataset saves a whole result once, and was given a stream, which has no end",
    ),
    "credentials not found": (
        readings(credentials="nobody"),
        "raw.sensor: credentials 'nobody' are not known; add nobody: to conf/local/",
    ),
    "credentials of a micro-batch not found": (
        {"processed.stock": {**STOCK, "arguments": {"credentials": "nobody"}}},
        "processed.stock: credentials 'nobody' are not known",
    ),
    "datasets of a micro-batch are missing": (
        {"processed.stock": STOCK | {"datasets": []}},
        "datasets is empty, so batches would go nowhere",
    ),
    "writer option of a micro-batch": (
        stock_saved(header=True),
        "'header' does nothing here, because the datasets do the writing",
    ),
    "partitions of a micro-batch": (
        stock_saved(partition_by=["sku"]),
        "partition_by does nothing here, because the datasets do the writing",
    ),
    "a micro-batch without batches": (
        stock_saved(trigger="continuous 1 second"),
        "trigger: continuous writes row by row, and there are no batches",
    ),
    "partitions of an unknown column": (
        averages_saved(partition_by="day"),
        "processed.sensor: partition_by names day, and the rows have only sensor_id",
    ),
    "a folder inside another one's": (
        averages(filepath="data/02_intermediate/inventory/averages"),
        "inside {project}/data/02_intermediate/inventory, which is int.new_inventory's",
    ),
}


def written(project: Project) -> set[str]:
    """Everything under data, folders too."""
    return {str(path) for path in (project.folder / "data").rglob("*")}


def overlay(project: Project, entries: dict) -> None:
    """Replace catalog entries, as an environment does."""
    entries = {
        name: {key: value for key, value in entry.items() if value is not None}
        for name, entry in entries.items()
    }
    (project.folder / "conf/local/catalog.yml").write_text(yaml.safe_dump(entries))


def refusal(project: Project, *pipelines: str, **selection: list[str]) -> str:
    """Run, expect to be refused, and return the reason."""
    with pytest.raises((ClickException, KeyError)) as caught:
        run_in_process(project, *pipelines, **selection)
    return str(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_before_any_stream_starts(project, spark, mistake):
    entries, sentence = MISTAKES[mistake]
    (project.folder / "data/01_raw/empty").mkdir()
    (project.folder / "data/01_raw/other.json").write_text(json.dumps({"a": 1}))
    overlay(project, entries)
    before = written(project)

    reason = refusal(project)

    assert sentence.replace("{project}", str(project.folder)) in reason
    assert written(project) == before
    assert not spark.streams.active


def test_a_package_that_the_running_spark_lacks_is_named(project, spark):
    package = "org.mongodb.spark:mongo-spark-connector_2.13:10.5.0"
    project.edit(
        "conf/base/spark.yml", ("packages:\n", f"packages:\n  mongodb: {package}\n")
    )
    overlay(project, readings(file_format="mongodb"))

    reason = refusal(project)

    assert (
        f"raw.sensor: file_format 'mongodb' needs the package {package}, and the running "
        "Spark was started without it"
    ) in reason


def test_a_checkpoint_of_another_format_is_refused(ran):
    """Or one folder would hold files of two formats."""
    overlay(ran, readings() | averages(file_format="json"))

    reason = refusal(ran, "sensor")

    assert "belongs to another stream: it wrote csv, not json" in reason


def test_a_stream_that_no_entry_stores_is_refused(project, spark):
    """Its name is misspelt in the catalog, and nothing would ever run."""
    project.edit("conf/base/catalog.yml", ("processed.sensor:", "processed.sensors:"))

    reason = refusal(project, "sensor")

    assert reason.startswith("processed.sensor is a stream that nobody reads")
    assert reason.endswith("did you mean processed.sensors?")


def test_complete_without_an_aggregation_is_refused(project, spark):
    sink = {"file_format": "console", "save_args": {"output_mode": "complete"}}
    overlay(project, {"int.new_inventory": {"type": STREAM, **sink}})

    reason = refusal(project, to_nodes=["stamp_processing_time"])

    assert (
        "int.new_inventory: output_mode 'complete' writes the whole result each time, "
        "and only an aggregation (groupBy) has one; set output_mode: append"
    ) in reason


def test_all_problems_are_listed_at_once(project, spark):
    overlay(
        project,
        readings(filepath="data/01_raw/nowhere")
        | averages_saved(trigger="sometimes")
        | stock_saved(output_mode="overwrite"),
    )

    reason = refusal(project).splitlines()

    assert reason[0] == "3 problems"
    assert reason[1].startswith(
        "- processed.sensor: trigger 'sometimes' does not exist"
    )
    assert reason[2].startswith("- processed.stock: output_mode 'overwrite' does not")
    assert reason[3].startswith("- raw.sensor: folder /") and len(reason) == 4


def test_the_command_line_shows_the_reason_last_and_exits_1(project):
    overlay(project, readings(filepath="data/01_raw/nowhere"))

    result = project.kedro("run")

    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: raw.sensor: folder /")
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("added", "answer"),
    [
        ("units: {type: MemoryDataset}\n" * 2, "found duplicate key units"),
        ("units:\n  type: MemoryDataset\n type: a\n", "Invalid YAML or JSON file"),
    ],
)
def test_a_catalog_that_cannot_be_read_is_a_sentence(project, added, answer):
    file = project.folder / "conf/base/catalog.yml"
    file.write_text(file.read_text() + added)

    for command in (("run",), ("streams", "check")):
        result = project.kedro(*command)

        said = " ".join((result.stdout + result.stderr).split())
        assert result.returncode == 1 and "Traceback" not in said
        assert (
            said.partition("Error: the configuration of catalog")[2].find(answer) >= 0
        ), said


def test_a_setting_that_is_no_number_is_named(project):
    settings = {"spark.memory.fraction": "lots"}
    (project.folder / "conf/local/spark.yml").write_text(yaml.safe_dump(settings))

    result = project.kedro("run")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1 and "Traceback" not in said
    assert "spark.memory.fraction in spark.yml: " in said


def test_a_sink_refused_by_its_node_is_told_in_a_sentence_too(project):
    overlay(project, readings(streaming=False))

    result = project.kedro("run", "--pipelines=sensor")

    assert result.returncode == 1
    assert "processed.sensor: this is a sink for streams" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr


# --- checkpoints that do not fit ---------------------------------------------


@pytest.fixture
def ran(project, spark) -> Project:
    """A project whose sensor pipeline has run once."""
    overlay(project, readings() | averages())
    run_in_process(project, "sensor")
    return project


def test_output_without_its_checkpoint_is_refused(ran):
    shutil.rmtree(ran.folder / "data/04_checkpoint")
    before = written(ran)

    reason = refusal(ran, "sensor")

    assert "processed.sensor: output" in reason and "is gone, so Spark would" in reason
    assert "start over: kedro streams reset processed.sensor" in reason
    assert written(ran) == before


def test_a_checkpoint_without_its_output_is_refused(ran):
    shutil.rmtree(ran.folder / "data/03_primary")

    reason = refusal(ran, "sensor")

    assert "batches were written, and output" in reason and "none of them" in reason


def test_an_older_output_than_its_checkpoint_is_refused(ran):
    log = ran.folder / "data/03_primary/sensor/_spark_metadata"
    for number in log.glob("[1-9]*"):
        number.unlink()

    reason = refusal(ran, "sensor")

    assert "at batch 0: they are not of the same age" in reason


def test_a_checkpoint_of_another_source_is_refused(ran):
    shutil.copytree(
        ran.folder / "data/01_raw/stream/sensor", ran.folder / "data/01_raw/elsewhere"
    )
    overlay(ran, readings(filepath="data/01_raw/elsewhere") | averages())

    reason = refusal(ran, "sensor")

    assert "belongs to another stream: it read csv from" in reason
    assert "01_raw/stream/sensor, not csv from" in reason


def test_a_checkpoint_of_another_window_is_refused(ran):
    """Spark itself would mix the old windows with the new."""
    (ran.folder / "conf/local/parameters.yml").write_text("sensor: {window: 7 minutes}")

    reason = refusal(ran, "sensor")

    assert "time window of 300000000 and " in reason
    assert "time window of 420000000 and " in reason


def test_a_checkpoint_of_another_grouping_is_refused(ran, monkeypatch):
    from cold_store.pipelines.sensor import pipeline

    original = pipeline.average_by_window

    def average_by_window(readings, window, lateness):
        averages = original(readings, window, lateness)
        return averages.withColumnRenamed("sensor_id", "id").dropDuplicates(["id"])

    monkeypatch.setattr(pipeline, "average_by_window", average_by_window)

    reason = refusal(ran, "sensor")

    assert "belongs to another stream: it kept Aggregate by sensor_id" in reason
    assert "not Deduplicate by id STRING and Aggregate by sensor_id" in reason


def test_a_torn_record_of_a_checkpoint_does_not_stop_a_run(ran):
    """As a crash in the middle of the first start leaves it."""
    record = ran.folder / "data/04_checkpoint/processed_sensor/_stream.json"
    record.write_text('{"sources": [')

    run_in_process(ran, "sensor")

    assert json.loads(record.read_text())["sources"]


def test_starting_over_names_the_streams_downstream(project, spark):
    run_in_process(project, "inventory")
    shutil.rmtree(project.folder / "data/02_intermediate")

    reason = refusal(project, "inventory")

    assert "start over (with processed.stock, which read it): kedro" in reason
    assert "kedro streams reset int.new_inventory processed.stock" in reason


def test_a_column_that_csv_cannot_hold_is_refused(project, spark, code):
    from cold_store.extras.streams import checks

    sink = code.datasets.SparkStreamingDataset(
        file_format="csv",
        filepath=str(project.folder / "out"),
        save_args={"checkpoint": str(project.folder / "checkpoint")},
    )
    sink.held = True
    rate = code.datasets.SparkStreamingDataset(file_format="rate").load()
    sink.save(rate.selectExpr("window(timestamp, '1 minute') AS window"))

    (reason,) = checks.unstorable({"a": sink})

    assert reason.startswith("a: column window is of type struct, and csv has no place")


def test_a_checkpoint_and_output_that_belong_together_are_accepted(ran):
    before = ran.lines("data/03_primary/sensor/*.csv")

    run_in_process(ran, "sensor")

    assert before and ran.lines("data/03_primary/sensor/*.csv") == before
