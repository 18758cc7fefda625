"""Any Kedro dataset as the sink of a stream."""

from typing import Any

from kedro.io import AbstractDataset, DatasetError
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from . import arguments
from .stream_sink import StreamSink


class MicroBatchDataset(StreamSink):
    """Saves each micro-batch of a stream with ordinary Kedro datasets.

    ```yaml
    processed.stock:
      type: {{ cookiecutter.python_package }}.extras.datasets.MicroBatchDataset
      datasets:                     # one or several; each gets every batch
        - type: pandas.CSVDataset   # pandas datasets get a pandas frame, others Spark's
          filepath: data/03_primary/stock.csv
      save_args:
        output_mode: complete       # the whole result each time, so a replay is harmless
        checkpoint: data/04_checkpoint/processed_stock
    ```

    After a crash Spark replays the batch it was in, so the datasets must bear to
    save the same batch twice: those that overwrite do, those that append do not.
    ``load`` reads, as a batch, what the first dataset holds.
    """

    def __init__(
        self,
        *,
        datasets: list[dict[str, Any]],
        save_args: dict[str, Any],
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Build the wrapped datasets; they need not exist yet."""
        self.name = name
        if not isinstance(datasets, list) or not datasets:
            raise DatasetError(
                "datasets is empty, so batches would go nowhere; write a list with at "
                "least one dataset, each starting with '- type: '"
            )
        self._configure_sink(save_args)
        if options := sorted(save_args.keys() - set(arguments.SINK_KEYS)):
            raise DatasetError(
                f"'{options[0]}' does nothing here, because the datasets do the "
                "writing; put it under the save_args of one of them"
            )
        self._datasets = [self._build(config) for config in datasets]
        self._places = [
            f"{d['type']} {d.get('filepath', '')}".strip() for d in datasets
        ]
        self.metadata = metadata

    @staticmethod
    def _build(config: dict[str, Any]) -> AbstractDataset:
        """Kedro makes paths absolute, but not inside lists."""
        keys = config.keys() & {"filepath", "filename", "path"}
        paths = {key: arguments.absolute(config[key]) for key in keys}
        return AbstractDataset.from_config("datasets", {**config, **paths})

    @property
    def place(self) -> str:
        """Where rows go, for people to read."""
        return " and ".join(self._places)

    def load(self) -> Any:
        """Read what the first dataset holds, as a batch."""
        return self._datasets[0].load()

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        return self._start_gated(writer, self._save_everywhere)

    def _save_everywhere(self, batch: DataFrame) -> None:
        is_shared = len(self._datasets) > 1
        if is_shared:
            batch.persist()  # so that the second does not compute it once more
        try:
            for dataset in self._datasets:
                dataset.save(_frame_for(dataset, batch))
        finally:
            if is_shared:
                batch.unpersist()

    def _exists(self) -> bool:
        return self._datasets[0].exists()

    def _describe(self) -> dict[str, Any]:
        return {
            "datasets": [dataset._describe() for dataset in self._datasets],
            "output_mode": self.output_mode,
            "checkpoint": self.checkpoint,
        }


def _frame_for(dataset: AbstractDataset, batch: DataFrame) -> Any:
    """Give ``kedro_datasets.pandas`` a pandas frame and everything else Spark's."""
    if ".pandas." in type(dataset).__module__:
        return batch.toPandas()
    return batch
