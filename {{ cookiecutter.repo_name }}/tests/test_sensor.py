"""The sensor's nodes, on frames that stand still."""

from pyspark.sql import functions as F

from {{ cookiecutter.python_package }}.pipelines.sensor.nodes import (
    average_by_window,
    keep_possible_readings,
)


def test_broken_and_impossible_readings_leave(spark, rows):
    readings = spark.createDataFrame(
        [
            ("a", 4.0, "08:00"),
            ("a", None, "08:01"),
            ("a", 999.0, "08:02"),
            ("a", 5.0, None),
        ],
        "sensor_id STRING, value DOUBLE, read_at STRING",
    )

    kept = keep_possible_readings(readings, lowest=-40.0, highest=60.0)

    assert rows(kept) == [{"sensor_id": "a", "value": 4.0, "read_at": "08:00"}]


def test_readings_are_averaged_per_sensor_and_window_and_repeats_count_once(
    spark, rows
):
    readings = spark.createDataFrame(
        [
            ("a", 1.0, "2026-03-02 08:00:00"),
            ("a", 1.0, "2026-03-02 08:00:00"),
            ("a", 4.0, "2026-03-02 08:04:59"),
            ("a", 9.0, "2026-03-02 08:05:00"),
            ("b", 2.0, "2026-03-02 08:01:00"),
        ],
        "sensor_id STRING, value DOUBLE, read_at STRING",
    ).withColumn("read_at", F.to_timestamp("read_at"))

    averages = average_by_window(readings, window="5 minutes", lateness="10 minutes")

    clock = F.date_format("window_start", "HH:mm").alias("start")
    assert rows(averages.select("sensor_id", clock, "mean_value", "readings")) == [
        {"sensor_id": "a", "start": "08:00", "mean_value": 2.5, "readings": 2},
        {"sensor_id": "a", "start": "08:05", "mean_value": 9.0, "readings": 1},
        {"sensor_id": "b", "start": "08:00", "mean_value": 2.0, "readings": 1},
    ]
