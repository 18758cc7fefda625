"""raw.sensor -> possible readings (not stored) -> processed.sensor"""

from kedro.pipeline import Node, Pipeline

from .nodes import average_by_window, keep_possible_readings


def create_pipeline(**_: object) -> Pipeline:
    """One stream, with state: readings wait until their window closes."""
    return Pipeline(
        [
            Node(
                func=keep_possible_readings,
                inputs=[
                    "raw.sensor",
                    "params:sensor.lowest",
                    "params:sensor.highest",
                ],
                outputs="possible_readings",
                name="keep_possible_readings",
            ),
            Node(
                func=average_by_window,
                inputs=[
                    "possible_readings",
                    "params:sensor.window",
                    "params:sensor.lateness",
                ],
                outputs="processed.sensor",
                name="average_by_window",
            ),
        ],
        tags="sensor",
    )
