"""A sink that takes three seconds a batch, and notes when it began and ended."""

import time
from pathlib import Path

from kedro.io import AbstractDataset
from kedro.pipeline import Node, Pipeline


class Slow(AbstractDataset):
    def __init__(self, *, filepath):
        self._path = Path(filepath)

    def load(self):
        return self._path.read_text()

    def save(self, batch):
        self._path.write_text("begun")
        time.sleep(3)
        self._path.write_text("ended")

    def _describe(self):
        return {}


def create_pipeline():
    return Pipeline([Node(lambda x: x, "raw.sensor", "slow", name="slow")])
