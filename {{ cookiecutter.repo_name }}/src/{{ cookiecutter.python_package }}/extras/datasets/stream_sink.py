"""What every sink of a stream has in common."""

import socket
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from . import arguments


class HeldBack(Exception):
    """A batch that was not to be written any more, because its stream is stopping."""


class StreamSink(AbstractDataset[DataFrame, Any]):
    """When a stream writes, where it remembers how far it came, what it is called.

    ``save`` starts the query at once and keeps its handle in ``.query``. Whoever
    wants to start it later, as a run does, sets ``.held`` and calls ``start``.
    """

    _SINGLE_PROCESS = True  # Spark's session cannot follow into another process

    name: str | None = None  # of the catalog entry; the hooks tell
    held = False
    query: StreamingQuery | None = None

    # Of a sink that writes batches with Python code, which alone can refuse to:
    last_batch: int | None = (
        None  # set by whoever stops the stream; none after it begins
    )
    failure: Exception | None = None  # why a batch was not written

    _data: DataFrame | None = None
    _line: Any = None  # on which Java calls for each batch

    def __new__(cls, *_: Any, **config: Any) -> "StreamSink":
        """Refuse unknown keys here, where Kedro's own answer proposes no spelling."""
        arguments.refuse_unknown(cls, config)
        return super().__new__(cls)

    def _configure_sink(self, save_args: dict[str, Any]) -> None:
        """Understand the five keys of ``save_args``; the rest are writer options."""
        arguments.refuse_misspelt_writing(save_args)
        self.output_mode = arguments.output_mode(save_args)
        self._trigger = arguments.trigger(save_args)
        self._query_name = save_args.get("query_name")
        self._partition_by = arguments.columns(save_args, "partition_by")
        checkpoint = save_args.get("checkpoint")
        self.checkpoint = arguments.absolute(checkpoint) if checkpoint else None
        if save_args and not checkpoint and self.needs_checkpoint:
            self.refuse_missing_checkpoint()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a restart would write rows again that somebody still has."""
        return True

    @property
    def kind(self) -> str:
        """What the stream writes; a checkpoint is of no use for another kind."""
        return "batches"

    @property
    def output(self) -> str | None:
        """The folder that holds nothing but what this stream wrote, if there is one."""
        return None

    @property
    @abstractmethod
    def place(self) -> str:
        """Where rows go, for people to read."""

    @property
    def exchanges(self) -> set[str]:
        """What a stream writes and another may read: a folder, a table, topics."""
        return set()

    @property
    def replaces(self) -> set[str]:
        """Of these, the tables that every batch writes anew."""
        return set()

    @property
    def merges_into(self) -> set[str]:
        """The tables of which a batch may change rows, and not only add some."""
        return set()

    @property
    def formats(self) -> set[str]:
        """The formats and stores that Spark must know, some of which come in packages."""
        return arguments.stores(*self.paths)

    @property
    def paths(self) -> list[str]:
        """Every file or folder that is read or written here."""
        return [self.checkpoint] if self.checkpoint else []

    @property
    def overwritten(self) -> list[str]:
        """The files and folders that every batch writes anew."""
        return []

    @property
    def is_per_batch(self) -> bool:
        """Whether something is written for each number that a batch has."""
        return False

    @property
    def adds_up(self) -> bool:
        """Whether rows that come again as another stream's would be counted twice."""
        return False

    def unstorable(self, schema: StructType) -> Iterator[str]:
        """Find columns that there is no place for."""
        yield from ()

    def hazards(self) -> Iterator[str]:
        """Find what is legal, but hurts when a batch is replayed."""
        yield from ()

    def outgoing(self, rows: DataFrame) -> DataFrame:
        """Turn rows into what Spark's writer wants."""
        return rows

    @property
    def prints(self) -> bool:
        """Whether rows go to the screen, where a table of streams would be in the way."""
        return False

    @property
    def bears_a_cut(self) -> bool:
        """Whether a batch that is cut does no harm when it is replayed."""
        return True

    @property
    def has_default_trigger(self) -> bool:
        """Whether a batch begins as soon as the one before has ended."""
        return not self._trigger

    @property
    def trigger(self) -> str:
        """When batches begin, for people to read."""
        kind, value = next(iter(self._trigger.items()), ("processingTime", None))
        if value is None:
            return "as soon as there is data"
        if kind == "processingTime":
            return f"every {value}"
        return kind if value is True else f"{kind} {value}"

    @property
    def query_name(self) -> str | None:
        """What Spark's UI, logs and metrics call the stream."""
        return self._query_name or self.name

    @property
    def data(self) -> DataFrame:
        """The stream that ``save`` described."""
        assert self._data is not None, "nothing was saved here yet"
        return self._data

    @property
    def continuous(self) -> bool:
        """Whether rows are to be written one by one instead of in batches."""
        return "continuous" in self._trigger

    def refuse_missing_checkpoint(self) -> None:
        """Say that a stream without a memory of its own is no use."""
        raise DatasetError(
            "a stream that writes here needs a checkpoint, because without one a "
            "restart would write everything again; add checkpoint: "
            f"data/04_checkpoint/{(self.name or 'NAME').replace('.', '_')} to save_args"
        )

    def save(self, data: DataFrame) -> None:
        """Describe the stream and, unless it is held back, start it."""
        if not getattr(data, "isStreaming", False):
            raise DatasetError(
                f"this is a sink for streams and was given a {_kind(data)}, which ends; "
                "store it with a batch dataset (spark.SparkDatasetV2, "
                "pandas.CSVDataset), or let the node's input be a stream: an entry of "
                "type SparkStreamingDataset, also for a table that a MicroBatchDataset "
                "writes, which itself reads as a table"
            )
        if self.needs_checkpoint and not self.checkpoint:
            self.refuse_missing_checkpoint()
        self._data = data
        if not self.held:
            self.start()

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        """Start the described stream; ``available_now`` ends it once it caught up."""
        writer = self.outgoing(self.data).writeStream.outputMode(self.output_mode)
        trigger = {"availableNow": True} if available_now else self._trigger
        if trigger:
            writer = writer.trigger(**trigger)
        if self.query_name:
            writer = writer.queryName(self.query_name)
        if self.checkpoint:
            writer = writer.option("checkpointLocation", self.checkpoint)
        if self._partition_by:
            writer = writer.partitionBy(self._partition_by)
        self.last_batch = self.failure = None
        self.query = self._start(writer)
        return self.query

    @abstractmethod
    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Give the writer its destination and start it."""

    def _start_gated(
        self, writer: DataStreamWriter, write: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Write batches with Python code, which can refuse to begin another one."""
        self._hang_up()
        return writer.foreachBatch(partial(self._write_batch, write)).start()

    def _write_batch(
        self, write: Callable[[DataFrame, int], None], batch: DataFrame, batch_id: int
    ) -> None:
        """Write a batch; remember the error, of which Spark keeps only the text."""
        self._line = _line_of_this_thread()
        try:
            if self.last_batch is not None and batch_id > self.last_batch:
                raise HeldBack(f"batch {batch_id} is left to the next run")
            write(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def _hang_up(self) -> None:
        """End the line on which an earlier query called, and its thread with it.

        Java opens one for every query and leaves it open when the query has ended.
        """
        line, self._line = self._line, None
        if line is not None and line.socket is not None:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)


def _line_of_this_thread() -> Any:
    """Return the connection on which Java has called this thread."""
    client = getattr(SparkContext._gateway, "_gateway_client", None)
    return client.get_thread_connection() if client else None


def _kind(data: Any) -> str:
    if hasattr(data, "isStreaming"):
        return "batch DataFrame"
    return type(data).__name__
