"""Any Kedro dataset, or code of the user's, as the sink of a stream."""

from collections.abc import Iterator
from typing import Any

from kedro.io import DatasetError
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from .arguments import SINK_KEYS
from .batch_writers import DatasetWriter, FunctionWriter, RowWriter, Writer
from .stream_sink import StreamSink
from .upsert_dataset import UpsertDataset

WAYS = ("datasets", "function", "foreach")


class MicroBatchDataset(StreamSink):
    """Saves each micro-batch of a stream with ordinary Kedro datasets.

    ```yaml
    processed.stock:
      type: {{ cookiecutter.python_package }}.extras.datasets.MicroBatchDataset
      datasets:                     # one or several; a batch is computed once for all
        - type: pandas.CSVDataset   # gets the frame that its save takes: Spark's, pandas', ...
          filepath: data/03_primary/stock.csv
        - type: pandas.ParquetDataset
          filepath: data/08_reporting/stock/batch_id={batch_id}.parquet
      save_args:
        output_mode: complete       # the whole result each time, so a replay is harmless
        checkpoint: data/04_checkpoint/processed_stock
    ```

    After a crash Spark replays the batch it was in, so the datasets must bear to
    save the same batch twice. Those that overwrite do, and with ``{batch_id}`` in its
    filepath every batch overwrites itself alone; those that append do not.

    Instead of ``datasets``, ``function`` names a function ``f(batch, batch_id)`` and
    ``foreach`` a class with ``process(row)``; what is under ``arguments``, and the
    ``credentials``, are given to them by name. If they write with a format that comes
    in a package of ``spark.yml``, ``formats: [delta]`` says so.

    ``load`` reads, as a batch, what the first dataset holds.
    """

    def __init__(  # noqa: PLR0913 - the keys of a catalog entry
        self,
        *,
        save_args: dict[str, Any],
        datasets: list[dict[str, Any]] | None = None,
        function: str | None = None,
        foreach: str | None = None,
        arguments: dict[str, Any] | None = None,
        formats: list[str] | str | None = None,
        credentials: dict[str, Any] | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Build what will write; where it writes need not exist yet."""
        self.name = name
        self.metadata = metadata
        self._configure_sink(save_args)
        if options := sorted(save_args.keys() - set(SINK_KEYS)):
            raise DatasetError(
                f"'{options[0]}' does nothing here, because the datasets do the "
                "writing; put it under the save_args of one of them"
            )
        self._refuse_what_spark_cannot()
        self.named_formats = (
            {formats} if isinstance(formats, str) else {*(formats or ())}
        )
        given = {**(arguments or {})}
        if credentials:
            given["credentials"] = credentials
        _refuse_several_ways(datasets, function, foreach, given)
        self._writers: list[Writer] = []
        if function:
            self._writers.append(FunctionWriter(function, given))
        elif foreach:
            self._writers.append(RowWriter(foreach, given))
        else:
            self._writers += [DatasetWriter(config) for config in datasets or ()]
            self._refuse_wrong_upserts()
            self._refuse_lost_writes()

    def _refuse_what_spark_cannot(self) -> None:
        """Refuse what Spark itself would refuse, but only once other streams run."""
        if self._partition_by:
            raise DatasetError(
                "partition_by does nothing here, because the datasets do the writing; "
                "put it under the save_args of one of them"
            )
        if self.continuous:
            raise DatasetError(
                "trigger: continuous writes row by row, and there are no batches for the "
                "datasets then; write an interval, e.g. trigger: 1 second"
            )

    def _refuse_wrong_upserts(self) -> None:
        """Refuse upserts of which rows would get lost, or counted more than once."""
        upserts = self._upserts
        tables = [upsert.identity for upsert in upserts]
        if twice := [u for u in upserts if tables.count(u.identity) > 1]:
            raise DatasetError(
                f"{twice[-1].place} is there twice under datasets, and takes in every batch "
                "only once; let one dataset write all its columns"
            )
        if self.output_mode != "append" and self.adds_up:
            raise DatasetError(
                f"add with output_mode: {self.output_mode} would add totals, which "
                "come again with every change, to themselves; write output_mode: append "
                "for rows that are added up in the table, or remove add for totals"
            )

    def _refuse_lost_writes(self) -> None:
        """Refuse places that a batch would write twice, or delete the checkpoint in."""
        for number, place in enumerate(self.overwritten):
            others = self.overwritten[:number] + self.overwritten[number + 1 :]
            if place in others:
                raise DatasetError(
                    f"{place} is there twice under datasets, and the second would write "
                    "over the first; give each a filepath of its own"
                )
            if inside := [p for p in others if p.startswith(f"{place}/")]:
                raise DatasetError(
                    f"{inside[0]} is inside {place}, which every batch writes anew, so "
                    "that it would be deleted; give each a folder beside the other"
                )
            if f"{self.checkpoint}/".startswith(f"{place}/"):
                raise DatasetError(
                    f"checkpoint {self.checkpoint} is inside {place}, which every batch "
                    "writes anew, so that it would be deleted; put it beside, e.g. into "
                    "data/04_checkpoint"
                )

    @property
    def overwritten(self) -> list[str]:
        """The files and folders that every batch writes anew."""
        return [w.overwritten for w in self._dataset_writers if w.overwritten]

    @property
    def is_per_batch(self) -> bool:
        """Whether something is written for each number that a batch has."""
        return any(writer.is_per_batch for writer in self._dataset_writers)

    @property
    def adds_up(self) -> bool:
        """Whether rows that come again as another stream's would be counted twice."""
        return any(upsert.adds for upsert in self._upserts)

    @property
    def bears_a_cut(self) -> bool:
        """Whether a batch that is cut does no harm; of these, nobody can know."""
        return False

    @property
    def place(self) -> str:
        """Where rows go, for people to read."""
        return " and ".join(writer.place for writer in self._writers)

    @property
    def merges_into(self) -> set[str]:
        """The tables of which a batch may change rows, and not only add some."""
        return set().union(*[upsert.merges_into for upsert in self._upserts])

    @property
    def _upserts(self) -> list[UpsertDataset]:
        datasets = [writer.dataset for writer in self._dataset_writers]
        return [d for d in datasets if isinstance(d, UpsertDataset)]

    def load(self) -> Any:
        """Read what the first dataset holds, as a batch."""
        return self._first_dataset.load()

    @property
    def _first_dataset(self) -> DatasetWriter:
        first = self._writers[0]
        if not isinstance(first, DatasetWriter):
            raise DatasetError(
                f"{self.place} writes and does not read; give what it writes an entry "
                "of its own, and read that"
            )
        return first

    def hazards(self) -> Iterator[str]:
        """Find what is legal, but hurts when a batch is replayed."""
        for writer in self._dataset_writers:
            yield from writer.hazards(self.output_mode)

    def unstorable(self, schema: StructType) -> Iterator[str]:
        """Find what would fail with the first batch."""
        for writer in self._dataset_writers:
            yield from writer.problems(schema)

    @property
    def formats(self) -> set[str]:
        """The formats that Spark must know, some of which come in packages."""
        own = super().formats | self.named_formats
        return own.union(*[d.formats for d in self._dataset_writers])

    @property
    def databases(self) -> set[str]:
        """The databases that Spark reaches by a driver of theirs."""
        return set().union(*[d.databases for d in self._dataset_writers])

    @property
    def paths(self) -> list[str]:
        """Every file or folder that is read or written here."""
        return [*super().paths, *[p for d in self._dataset_writers for p in d.paths]]

    @property
    def _dataset_writers(self) -> list[DatasetWriter]:
        return [w for w in self._writers if isinstance(w, DatasetWriter)]

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        return self._start_gated(writer, self._write_everywhere)

    def _write_everywhere(self, batch: DataFrame, batch_id: int) -> None:
        again = any(writer.reads_again for writer in self._dataset_writers)
        is_shared = len(self._writers) > 1 or again
        if is_shared:
            batch.persist()  # so that nobody computes it, and reads the source, once more
        try:
            for writer in self._writers:
                writer.write(batch, batch_id)
        finally:
            if is_shared:
                batch.unpersist()

    def _exists(self) -> bool:
        first = self._writers[0]
        return isinstance(first, DatasetWriter) and first.exists()

    def _describe(self) -> dict[str, Any]:
        return {
            "writes": self.place,
            "datasets": [writer.describe() for writer in self._dataset_writers],
            "output_mode": self.output_mode,
            "checkpoint": self.checkpoint,
        }


def _refuse_several_ways(
    datasets: Any, function: Any, foreach: Any, given: dict[str, Any]
) -> None:
    """Refuse an entry that says in no way, or in two, what happens with a batch."""
    ways = [w for w, v in zip(WAYS, (datasets, function, foreach), strict=True) if v]
    if not ways:
        raise DatasetError(
            "datasets is empty, so batches would go nowhere; write a list with at "
            "least one dataset, each starting with '- type: ', or function: or foreach:"
        )
    if len(ways) > 1:
        raise DatasetError(
            f"{' and '.join(ways)} exclude each other, because a batch that fails in "
            "one would be written by the other; choose one, or two entries"
        )
    if datasets and not isinstance(datasets, list):
        raise DatasetError(
            "datasets is no list; begin each dataset with '- type: ', even a single one"
        )
    if datasets and given:
        raise DatasetError(
            "arguments and credentials are for function and foreach; put what a "
            "dataset needs under the dataset"
        )
