"""Deliveries, described and added up."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def describe_deliveries(deliveries: DataFrame, products: DataFrame) -> DataFrame:
    """Add to each delivery what is known about its product.

    Args:
        deliveries: One row per delivery: ``sku``, ``new_stock``, ``arrived_at``.
        products: One row per product: ``sku``, ``name``, ``aisle``.

    Returns:
        One row per delivery, with ``name`` and ``aisle``, which are empty for a
        product that is not on the list: a delivery is never lost.
    """
    return deliveries.join(products, on="sku", how="left")


def stamp_processing_time(deliveries: DataFrame) -> DataFrame:
    """Add to each delivery when it was processed.

    Args:
        deliveries: One row per delivery.

    Returns:
        One row per delivery, with ``processed_at``, the start of its batch.
    """
    return deliveries.withColumn("processed_at", F.current_timestamp())


def count_units_on_shelf(deliveries: DataFrame) -> DataFrame:
    """Add up what was delivered of each product.

    Args:
        deliveries: One row per delivery: ``sku``, ``name``, ``aisle``, ``new_stock``.

    Returns:
        One row per product: ``sku``, ``name``, ``aisle``, ``units``. A delivery that
        could not be understood, and so has no ``sku``, is not counted.
    """
    understood = deliveries.dropna(subset=["sku", "new_stock"])
    units = F.sum("new_stock").alias("units")
    return understood.groupBy("sku", "name", "aisle").agg(units)
