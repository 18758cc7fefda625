"""raw.new_inventory_malformed + raw.sensor_malformed -> int.malformed"""

from kedro.pipeline import Node, Pipeline

from .nodes import gather_malformed


def create_pipeline(**_: object) -> Pipeline:
    """One stream, of what the other pipelines leave out."""
    return Pipeline(
        [
            Node(
                func=gather_malformed,
                inputs=["raw.new_inventory_malformed", "raw.sensor_malformed"],
                outputs="int.malformed",
                name="gather_malformed",
            ),
        ],
        tags="malformed",
    )
