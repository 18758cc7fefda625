"""The inventory's nodes, on frames that stand still."""

from {{ cookiecutter.python_package }}.pipelines.inventory.nodes import (
    count_units_on_shelf,
    describe_deliveries,
    stamp_processing_time,
)


def test_a_delivery_learns_its_product_and_an_unknown_one_is_kept(spark, rows):
    deliveries = spark.createDataFrame(
        [("A", 3), ("B", 5)], "sku STRING, new_stock INT"
    )
    products = spark.createDataFrame([("A", "peas")], "sku STRING, name STRING")

    described = describe_deliveries(deliveries, products)

    assert rows(described) == [
        {"sku": "A", "new_stock": 3, "name": "peas"},
        {"sku": "B", "new_stock": 5, "name": None},
    ]


def test_a_delivery_is_stamped_with_the_time_of_its_batch(spark):
    deliveries = spark.createDataFrame([("A",), ("B",)], "sku STRING")

    stamped = stamp_processing_time(deliveries).collect()

    assert stamped[0].processed_at is not None
    assert stamped[0].processed_at == stamped[1].processed_at


def test_units_of_a_product_add_up_and_a_broken_line_is_not_counted(spark, rows):
    deliveries = spark.createDataFrame(
        [
            ("A", "peas", "C", 3),
            ("A", "peas", "C", 4),
            ("B", None, None, 5),
            (None, None, None, None),
        ],
        "sku STRING, name STRING, aisle STRING, new_stock INT",
    )

    assert rows(count_units_on_shelf(deliveries)) == [
        {"sku": "A", "name": "peas", "aisle": "C", "units": 7},
        {"sku": "B", "name": None, "aisle": None, "units": 5},
    ]
