"""What could not be understood, put aside."""

from pyspark.sql import DataFrame


def gather_malformed(deliveries: DataFrame, readings: DataFrame) -> DataFrame:
    """Put what does not fit a schema together, to be looked at and replayed.

    Args:
        deliveries: One row per delivery that could not be understood.
        readings: One row per reading that could not be understood.

    Returns:
        One row per input row, with the same columns: ``value`` as it came, where it
        came from, and the ``reason``.
    """
    return deliveries.unionByName(readings)
