"""raw.new_inventory + raw.products -> int.new_inventory -> processed.stock"""

from kedro.pipeline import Node, Pipeline

from .nodes import count_units_on_shelf, describe_deliveries, stamp_processing_time


def create_pipeline(**_: object) -> Pipeline:
    """Two streams: the second reads what the first one writes."""
    return Pipeline(
        [
            Node(
                func=describe_deliveries,
                inputs=["raw.new_inventory", "raw.products"],
                outputs="described_deliveries",
                name="describe_deliveries",
            ),
            Node(
                func=stamp_processing_time,
                inputs="described_deliveries",
                outputs="int.new_inventory",
                name="stamp_processing_time",
            ),
            Node(
                func=count_units_on_shelf,
                inputs="int.new_inventory",
                outputs="processed.stock",
                name="count_units_on_shelf",
            ),
        ],
        tags="inventory",
    )
