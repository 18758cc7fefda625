"""Readings, sifted and averaged."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def keep_possible_readings(
    readings: DataFrame, lowest: float, highest: float
) -> DataFrame:
    """Drop readings that are broken or cannot be true.

    Args:
        readings: One row per line received: ``sensor_id``, ``value``, ``read_at``.
            What could not be understood of a line is empty.
        lowest: The coldest reading a sensor can give.
        highest: The warmest reading a sensor can give.

    Returns:
        One row per possible reading, with the same columns.
    """
    complete = readings.dropna(subset=["sensor_id", "value", "read_at"])
    return complete.where(F.col("value").between(lowest, highest))


def average_by_window(readings: DataFrame, window: str, lateness: str) -> DataFrame:
    """Average reading of each sensor in fixed windows of event time.

    Args:
        readings: One row per reading: ``sensor_id``, ``value``, ``read_at``. One
            that was sent twice counts once.
        window: Width of a window, e.g. ``"5 minutes"``.
        lateness: How long a late reading may still change its window.

    Returns:
        One row per sensor and closed window: ``sensor_id``, ``window_start``,
        ``window_end``, ``mean_value``, ``readings``.
    """
    distinct = readings.withWatermark("read_at", lateness).dropDuplicates(
        ["sensor_id", "read_at"]
    )
    windows = distinct.groupBy("sensor_id", F.window("read_at", window)).agg(
        F.round(F.avg("value"), 2).alias("mean_value"), F.count("*").alias("readings")
    )
    return windows.select(
        "sensor_id",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "mean_value",
        "readings",
    )
