"""A folder, a topic or a table as a stream."""

import json
import logging
import re
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

from kedro.io import DatasetError
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from ..streams.errors import SECRET, first_sentence
from ..streams.files import at, needs_spark
from ..streams.session import (
    get_spark,
    has_own_catalog,
    is_running,
    missing_format,
    warehouse,
)
from . import arguments, kafka, malformed, schemas
from .lake_tables import CARELESS, LAKES, LakeTable
from .payload import Payload, nested_in_csv
from .stream_sink import StreamSink

logger = logging.getLogger(__name__)

FILE_FORMATS = {"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"}
PATHLESS_FORMATS = {"console", "kafka", "memory", "noop", "rate", "rate-micro-batch"}
PATHLESS_FORMATS |= {"socket"}
FORGETFUL_SINKS = {"console", "memory", "noop"}  # nothing there to be written twice
ONLY_SOURCES = {"binaryfile", "rate", "rate-micro-batch", "socket"}
FIXED_SCHEMA = {"binaryfile", "text"}
GLOB = re.compile(r"[*?\[{]")
EARLIEST = -2  # as an offset
AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


class SparkStreamingDataset(StreamSink):
    """Reads a stream from, and writes a stream to, anything Spark knows by name.

    ```yaml
    raw.sensor:                       # source
      type: {{ cookiecutter.python_package }}.extras.datasets.SparkStreamingDataset
      file_format: csv
      filepath: data/01_raw/stream/sensor/
      load_args:
        schema: sensor_id STRING, value DOUBLE, read_at TIMESTAMP
        header: true

    processed.sensor:                 # sink
      type: {{ cookiecutter.python_package }}.extras.datasets.SparkStreamingDataset
      file_format: parquet
      filepath: data/03_primary/sensor/
      save_args:
        output_mode: append           # append | update | complete
        checkpoint: data/04_checkpoint/processed_sensor
        trigger: 10 seconds           # | available_now | once | continuous 1 second
    ```

    With ``streaming: false`` an entry is read as a table: ``load`` gives what is
    there now, as an ordinary DataFrame. With ``malformed_only: true`` it gives what
    does not fit the schema, as it came, and why.

    Messages of Kafka become columns, and columns messages, by their ``payload``:

    ```yaml
    raw.readings:
      type: {{ cookiecutter.python_package }}.extras.datasets.SparkStreamingDataset
      file_format: kafka
      load_args: {kafka.bootstrap.servers: "127.0.0.1:9092", subscribe: readings}
      payload:
        format: json                  # | avro | csv | text | binary
        schema: sensor_id STRING, value DOUBLE, read_at TIMESTAMP
        malformed: fail               # | drop | keep, for an entry with malformed_only
        keep: [key, timestamp]        # message_key and message_timestamp, too
    ```
    """

    def __init__(  # noqa: PLR0913 - the keys of a catalog entry
        self,
        *,
        file_format: str,
        filepath: str | None = None,
        table: str | None = None,
        streaming: bool = True,
        malformed_only: bool = False,
        payload: dict[str, Any] | None = None,
        load_args: dict[str, Any] | None = None,
        save_args: dict[str, Any] | None = None,
        credentials: dict[str, Any] | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Refuse every mistake that can be seen without Spark.

        Args:
            file_format: Any source or sink Spark knows: json, csv, kafka, rate, ...
            filepath: Folder of a file format.
            table: Name of a table, instead of ``filepath``.
            streaming: False to read as a table, not as a stream.
            malformed_only: True to read just what does not fit the schema.
            payload: How the value of a Kafka message becomes columns, and back.
            load_args: ``schema``, and options of Spark's reader.
            save_args: ``output_mode``, ``checkpoint``, ``trigger``, ``query_name``,
                ``partition_by``, and options of Spark's writer.
            credentials: Options for reader and writer that are never shown.
            name: What the entry is called; the hooks fill it in.
            metadata: Ignored here, for other tools.
        """
        self.name = name
        self.file_format = file_format
        self.filepath = arguments.absolute(filepath) if filepath else None
        self.table = table
        self.metadata = metadata
        self._streaming = streaming
        self.malformed_only = malformed_only
        self._load_args = deepcopy(load_args or {})
        self._save_args = deepcopy(save_args or {})
        self._credentials = deepcopy(credentials or {})
        self._schema = self._load_args.pop("schema", None)
        self._refuse_wrong_place()
        is_lake = file_format.lower() in LAKES
        self._lake = LakeTable(file_format, self.filepath, table) if is_lake else None
        arguments.refuse_misspelt_reading(self._load_args)
        self._configure_sink(self._save_args)
        self._refuse_impossible_sink()
        self._schema = schemas.understood(self._schema)
        self._payload = self._understood(payload)

    def _understood(self, payload: dict[str, Any] | None) -> Payload | None:
        """Refuse what Kafka's options get wrong, and a payload without Kafka."""
        if self.is_kafka:
            self._load_args = kafka.as_json(self._load_args)
            kafka.refuse_wrong_partitions(self._load_args)
            kafka.refuse_foreign(self._load_args, "load_args")
            kafka.refuse_foreign(self._options(), "save_args")
            kafka.refuse_misplaced(self._load_args, self._save_args)
            kafka.refuse_unprefixed(self._secrets(), "the credentials")
            if self._schema:
                raise DatasetError(
                    "load_args.schema does nothing with file_format kafka, whose "
                    "messages have columns of their own; move it under payload"
                )
        elif payload:
            raise DatasetError(
                "payload says how messages of Kafka become columns, and file_format is "
                f"'{self.file_format}'; remove it, or write file_format: kafka"
            )
        if self.malformed_only:
            malformed.refuse_where_unknown(self.file_format, payload)
        understood = Payload(payload, self._credentials) if payload else None
        if understood and understood.malformed == "drop" and not self._streaming:
            raise DatasetError(
                "payload.malformed: drop counts what it leaves out in the progress of a "
                "stream, and with streaming: false there is none; write malformed: fail"
            )
        return understood

    @property
    def is_kafka(self) -> bool:
        """Whether rows come and go as messages of Kafka."""
        return self.file_format.lower() == "kafka"

    @property
    def is_iceberg(self) -> bool:
        """Whether rows come from and go to a table of Iceberg."""
        return self._lake is not None and self._lake.file_format == "iceberg"

    @property
    def has_lost_its_beginning(self) -> bool:
        """Whether a stream that begins here would miss rows that it is to read."""
        since = self.reader_option("stream-from-timestamp")
        return self._lake is not None and self._lake.has_lost_rows(since)

    @property
    def keeps_malformed(self) -> bool:
        """Whether what does not fit is left out here, for another entry to store."""
        return self._payload is not None and self._payload.malformed == "keep"

    @property
    def begins_with_the_latest(self) -> bool:
        """Whether a first start passes over the messages that are there."""
        times = ("startingTimestamp", "startingOffsetsByTimestamp")
        begin = self.reader_option("startingOffsets") or "latest"
        is_latest = self.is_kafka and begin.lower() == "latest"
        return is_latest and not any(map(self.reader_option, times))

    @property
    def exchanges(self) -> set[str]:
        """What a stream writes and another may read: a folder, a table, topics."""
        servers = self.connection.get("kafka.bootstrap.servers")
        named = [f"topic {topic} of {servers}" for topic in self.topics]
        return set(filter(None, [self.filepath, self.table, *named]))

    @property
    def replaces(self) -> set[str]:
        """Of these, the tables that every batch writes anew."""
        is_replaced = self._lake and self.output_mode == "complete"
        return self.exchanges if is_replaced else set()

    @property
    def follows(self) -> set[str]:
        """The tables that are read as a stream, which can follow only rows that are added."""
        if not self._lake or not self.is_stream:
            return set()
        careless = CARELESS[self._lake.file_format]
        chosen = [self.reader_option(option) or "" for option in careless]
        return set() if "true" in map(str.lower, chosen) else self.exchanges

    @property
    def topics(self) -> list[str]:
        """The topics of Kafka that are read or written here, where they are named."""
        if not self.is_kafka:
            return []
        return kafka.topics({**self._save_args, **self._load_args})

    @property
    def connection(self) -> dict[str, Any]:
        """All options, with secrets: for asking whether a broker has the topics."""
        return {**self._save_args, **self._load_args, **self._credentials}

    @property
    def client_options(self) -> dict[str, Any]:
        """What of it Kafka's own client needs to connect, as options of Spark's."""
        return {k: v for k, v in self.connection.items() if k.startswith("kafka.")}

    def leaves_to(self, other: "SparkStreamingDataset") -> bool:
        """Whether another entry gives the malformed messages that this one leaves out."""
        if self._payload is None or other._payload is None or not other.malformed_only:
            return False
        ours, theirs = self._payload, other._payload
        is_same = theirs.understanding == ours.understanding
        misses_deletions = theirs.keeps_deletions and not ours.keeps_deletions
        return is_same and not misses_deletions and other._load_args == self._load_args

    @property
    def is_stream(self) -> bool:
        """Whether ``load`` gives a stream, and not a table."""
        return self._streaming

    @property
    def is_files(self) -> bool:
        """Whether rows are kept as files in a folder."""
        return self.filepath is not None and self.file_format.lower() in FILE_FORMATS

    @property
    def watched_folder(self) -> str | None:
        """The folder whose every file the stream reads, if it is as simple as that."""
        path, picky = self.filepath, {"pathGlobFilter", "recursiveFileLookup"}
        simple = (
            self.is_files and self._streaming and not picky & self._load_args.keys()
        )
        return path if path and simple and not GLOB.search(path) else None

    @property
    def kind(self) -> str:
        """What the stream writes; a checkpoint is of no use for another kind."""
        return self.file_format

    @property
    def output(self) -> str | None:
        """The folder that holds nothing but what this stream wrote, if there is one."""
        if self.is_files:
            return self.filepath
        folder = self._folder_of_table
        return folder if folder and has_own_catalog() else None

    @property
    def prints(self) -> bool:
        """Whether rows go to the screen, where a table of streams would be in the way."""
        return self.file_format.lower() == "console"

    @property
    def bears_a_cut(self) -> bool:
        """Whether a batch that is cut does no harm when it is replayed."""
        name = self.file_format.lower()
        return name in FILE_FORMATS | FORGETFUL_SINKS or name in LAKES

    @property
    def place(self) -> str:
        """Where rows come from or go to, for people to read."""
        topics = [self._load_args.get(k) for k in ("subscribe", "subscribePattern")]
        topics.append(self._save_args.get("topic"))
        named = [self.filepath, self.table, *topics]
        return " ".join([self.file_format, *[str(part) for part in named if part][:1]])

    def reader_option(self, name: str) -> str | None:
        """Return an option of the reader, however its name is written."""
        found = [v for k, v in self._load_args.items() if k.lower() == name.lower()]
        return str(found[-1]) if found else None

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a restart would write rows again that somebody still has."""
        return self.file_format.lower() not in FORGETFUL_SINKS

    @property
    def query_name(self) -> str | None:
        """The entry's name; as a table in memory it cannot have dots."""
        name = super().query_name
        if name and not self._query_name and self.file_format.lower() == "memory":
            return name.replace(".", "_")
        return name

    def load(self) -> DataFrame:
        """Describe the stream; Spark reads nothing yet."""
        spark = get_spark(*self.formats)
        reader: Any = spark.readStream if self._streaming else spark.read
        reader = reader.format(self.file_format).options(**self._load_args)
        reader = reader.options(**self._secrets())
        try:
            if self._lake:
                self._require_table(self._lake)
            if self.table:
                self._register_table(spark, schema=None)
                return reader.table(self.table)
            if self._payload:
                return self._decoded(reader, self._payload)
            if self.is_files:
                self._require_folder()
            reader = self._with_schema(reader, spark)
            if self.malformed_only:
                return malformed.lines(reader, self._schema, self.filepath)
            return reader.load(self.filepath)
        except Exception as error:
            raise self._explained(error) from error

    def _decoded(self, reader: Any, payload: Payload) -> DataFrame:
        if payload.needs_headers:
            reader = reader.option("includeHeaders", True)
        written = self._data.schema if self._data is not None else None
        if self.malformed_only:
            return payload.rejected(reader.load(), written)
        return payload.decode(reader.load(), self.name or "payload", written)

    @property
    def formats(self) -> set[str]:
        """The formats that Spark must know, some of which come in packages."""
        avro = {"avro"} if self._payload and self._payload.format == "avro" else set()
        return {self.file_format, *avro, *super().formats}

    @property
    def paths(self) -> list[str]:
        """Every file or folder that is read or written here."""
        folder = self._lake.folder if self._lake else self.filepath or self.output
        return [*super().paths, *([folder] if folder else [])]

    def outgoing(self, rows: DataFrame) -> DataFrame:
        """Turn rows into what Spark's writer wants: messages, if there is a payload."""
        if self._payload is None:
            return rows
        return self._payload.encode(rows, self._topic)

    @property
    def _topic(self) -> str | None:
        """The topic that is written, unless a column names it."""
        return next(iter(kafka.topics(self._save_args) or self.topics), None)

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        if self.is_kafka and not self.continuous:
            return self._start_gated(writer, self._send)
        writer = writer.format(self.file_format).options(**self._options())
        writer = writer.options(**self._secrets())
        if self.is_iceberg:
            writer = writer.option("fanout-enabled", True)  # rows come in any order
        if self.table:
            if self._lake:
                self._lake.find_again()  # Spark would try to make it once more
            self._register_table(get_spark(), schema=self.data.schema)
            return writer.toTable(self.table)
        return writer.start(self.filepath)

    def _send(self, batch: DataFrame, _: int) -> None:
        """Send a batch whose messages a replay would send again: so never half of it."""
        writer = batch.write.format(self.file_format).options(**self._options())
        writer.options(**self._secrets()).save()

    def save(self, data: DataFrame) -> None:
        """Start the query and keep its handle; inside a run, only describe it."""
        if not self._streaming:
            raise DatasetError(
                "this entry has streaming: false, so it can only be read; remove that "
                "line to write a stream, or use spark.SparkDatasetV2 for a batch"
            )
        if self.file_format.lower() in ONLY_SOURCES:
            raise DatasetError(
                f"file_format '{self.file_format}' can be read, not written; choose "
                "another, e.g. parquet"
            )
        super().save(data)

    def unstorable(self, schema: StructType) -> Iterator[str]:
        """Find columns that the format has no place for."""
        if self.file_format.lower() == "csv":
            yield from nested_in_csv(schema, "file_format: parquet")
        yield from schemas.undividable(self._partition_by, schema.names)
        if self._lake and not self._is_on("overwriteSchema"):
            yield from self._lake.problems(
                schema, self._widens_its_table, self._partition_by
            )
        if self.is_kafka:
            yield from self._unsendable(schema)

    @property
    def _widens_its_table(self) -> bool:
        """Whether the table is to take on columns that are new."""
        everywhere = get_spark().conf.get(AUTO_MERGE, "false")
        return self._is_on("mergeSchema") or everywhere == "true"

    def _is_on(self, option: str) -> bool:
        """Whether an option of the writer is true, however its name is written."""
        given = {re.sub("[-_]", "", k.lower()): v for k, v in self._options().items()}
        return str(given.get(option.lower())).lower() == "true"

    def _unsendable(self, schema: StructType) -> Iterator[str]:
        routes = self._payload.routes if self._payload else schema.names
        is_named = bool(kafka.topics(self._save_args))
        if "topic" not in routes and not is_named:
            yield (
                "no topic is named; add topic: NAME to save_args, or payload.topic, a "
                "column that names it"
            )
        elif "topic" in routes and is_named:
            yield (
                "a topic is named by save_args and by a column, of which Spark would "
                "take the first and lose the second; remove one of them"
            )
        if self._payload:
            yield from self._payload.unstorable(schema, self._topic)
            return
        lost = [name for name in schema.names if name not in kafka.MESSAGE]
        if lost or "value" not in schema.names:
            what = f"{', '.join(lost)} would be lost" if lost else "there is no value"
            yield (
                "without a payload only the columns key, value, topic, partition and "
                f"headers are sent, and {what}; "
                "add payload: {format: json}"
            )
        sent = {f.name: f for f in schema if f.name in kafka.MESSAGE}
        yield from kafka.wrong_types(sent)

    def first_malformed(self, begin: dict[str, Any], end: dict[str, Any]) -> str:
        """Say which message between two offsets of Kafka's is the first to be malformed."""
        if self._payload is None:
            return ""
        begin = {  # a partition that is new begins with its earliest message
            topic: {p: begin.get(topic, {}).get(p, EARLIEST) for p in partitions}
            for topic, partitions in end.items()
        }
        entry = copy(self)
        entry._payload = None
        # Where the stream once began, e.g. startingTimestamp, Spark would heed first.
        entry._load_args = {
            key: value
            for key, value in self._load_args.items()
            if not key.lower().startswith(("starting", "ending"))
        }
        span = {"startingOffsets": json.dumps(begin), "endingOffsets": json.dumps(end)}
        return self._payload.first_rejected(entry.as_table(**span), None)

    def as_table(self, **options: Any) -> DataFrame:
        """Read what is there now, and not as a stream."""
        entry = copy(self)
        entry._streaming = False
        entry._load_args = {**self._load_args, **options}
        return entry.load()

    def _options(self) -> dict[str, Any]:
        """What of ``save_args`` is for Spark's writer."""
        return {
            key: value
            for key, value in self._save_args.items()
            if key not in arguments.SINK_KEYS and value is not None
        }

    def _secrets(self) -> dict[str, Any]:
        """What of the credentials is for Spark; the registry's are not."""
        given = self._credentials
        return {k: v for k, v in given.items() if not k.startswith("registry.")}

    def _with_schema(self, reader: Any, spark: SparkSession) -> Any:
        """Give the reader its schema, wherever it is written down."""
        schema = self._schema = schemas.loaded(self._schema)
        has_none = schema is None and self.file_format.lower() not in FIXED_SCHEMA
        if has_none and self._streaming and self.is_files:
            self._schema = schema = self._guessed_schema(spark)
        return reader if schema is None else reader.schema(schema)

    def _guessed_schema(self, spark: SparkSession) -> StructType:
        """Take the schema of what this entry writes, or of the files that are there."""
        if self._data is not None:
            return self._data.schema
        reader = spark.read.format(self.file_format).options(**self._load_args)
        schema = reader.options(**self._credentials).load(self.filepath).schema
        ddl = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(  # type: ignore[union-attr]
            schema.json()
        ).toDDL()
        logger.warning(
            "%s has no schema; it was guessed from the files there now, and other "
            "files may bring other types. Write it down under load_args:\n"
            "    schema: %s",
            self.name or self.filepath,
            ddl,
        )
        return schema

    def lacks_its_table(self) -> bool:
        """Whether the table of Delta or Iceberg is missing that is to be read."""
        return self._lake is not None and not self._lake.exists()

    def _require_table(self, lake: LakeTable) -> None:
        """Make the table that a stream of this run will write, so that it can be read."""
        if lake.exists():
            return
        if self._data is None:
            raise DatasetError(
                f"{lake.place} does not exist, and no stream that ran before writes it "
                "by this entry; correct the name, or let the stream that writes it and "
                "the node that reads it use one entry of the catalog"
            )
        lake.create(self._data.schema, self._partition_by)

    def _require_folder(self) -> None:
        if self.lacks_its_folder():
            raise DatasetError(self.missing_folder())

    def lacks_its_folder(self) -> bool:
        """Whether the folder to read is missing, as far as can be seen by now."""
        path = self.filepath
        if not self.is_files or path is None or GLOB.search(path):
            return False
        if needs_spark(path) and not is_running():
            return False  # Spark will tell
        return not at(path).exists()

    def missing_folder(self) -> str:
        """Say that the folder to read is not there."""
        why = ", and a stream of files watches a folder" if self._streaming else ""
        return f"folder {self.filepath} does not exist{why}; create it, or correct filepath"

    def _register_table(self, spark: SparkSession, schema: StructType | None) -> None:
        """Find a table of files again, which Spark's own catalog forgets when it ends."""
        name, folder = str(self.table), self._folder_of_table
        if not folder or spark.catalog.tableExists(name):
            return
        if schema is not None or at(folder).exists():
            spark.catalog.createTable(
                name, path=folder, source=self.file_format, schema=schema
            )

    @property
    def _folder_of_table(self) -> str | None:
        """Where Spark's own catalog keeps the files of a table."""
        is_files = self.file_format.lower() in FILE_FORMATS
        if not is_files or not self.table or "." in self.table:
            return None
        return f"{warehouse()}/{self.table}"

    def _explained(self, error: Exception) -> DatasetError:
        """Translate what Spark says about a source into what to do."""
        if isinstance(error, DatasetError):
            return error
        text = first_sentence(error)
        if "UNABLE_TO_INFER_SCHEMA" in text:
            return DatasetError(
                f"there is no schema, and folder {self.filepath} has no files to guess "
                "it from; write it down, e.g. schema: sku STRING, units INT under load_args"
            )
        if isinstance(error, ParseException):
            return DatasetError(schemas.not_understood(self._schema, error))
        is_lakes = self._lake and "REQUIRES_SINGLE_PART_NAMESPACE" in text
        if is_lakes or re.search("find (the )?data source", text):
            return DatasetError(missing_format(self.file_format))
        return DatasetError(f"Spark cannot read this: {text}")

    def _refuse_wrong_place(self) -> None:
        name = self.file_format.lower()
        if self.filepath and self.table:
            raise DatasetError(
                "filepath and table exclude each other; write one of them"
            )
        if name in FILE_FORMATS and not (self.filepath or self.table):
            raise DatasetError(
                f"file_format '{self.file_format}' needs a folder to read from or "
                "write to; add filepath: data/..."
            )
        if name in PATHLESS_FORMATS and (self.filepath or self.table):
            raise DatasetError(
                f"file_format '{self.file_format}' is not stored anywhere, so filepath "
                "and table mean nothing; remove them"
            )

    def _refuse_impossible_sink(self) -> None:
        if self.file_format.lower() in FILE_FORMATS and self.output_mode != "append":
            raise DatasetError(
                f"output_mode '{self.output_mode}' does not work with file_format "
                f"'{self.file_format}', because files are only ever added, never "
                "rewritten; set output_mode: append, or write to a table format or "
                "with MicroBatchDataset"
            )
        if self.file_format.lower() in LAKES and self.output_mode == "update":
            raise DatasetError(
                f"output_mode 'update' does not work with file_format "
                f"'{self.file_format}', because a stream can only append to the table or "
                "replace it; set output_mode: append or complete, or let "
                "MicroBatchDataset write with UpsertDataset"
            )
        if self._partition_by and self.file_format.lower() in PATHLESS_FORMATS:
            raise DatasetError(
                f"partition_by divides a folder or a table, and file_format "
                f"'{self.file_format}' has neither; remove it"
            )
        inside = f"{self.filepath}/".startswith(f"{self.checkpoint}/")
        if self.filepath and self.checkpoint and inside:
            raise DatasetError(
                f"checkpoint {self.checkpoint} is, or contains, the output folder "
                f"{self.filepath}, and the two would overwrite each other; give the "
                "checkpoint a folder of its own, e.g. under data/04_checkpoint"
            )

    def _exists(self) -> bool:
        if self._lake:
            return self._lake.exists()
        if self.table:
            return get_spark(self.file_format).catalog.tableExists(self.table)
        if self.filepath is None:
            return False
        return at(self.filepath).exists()

    def _describe(self) -> dict[str, Any]:
        return {
            "file_format": self.file_format,
            "filepath": self.filepath,
            "table": self.table,
            "streaming": self._streaming,
            "schema": self._schema,
            "payload": self._payload and self._payload.format,
            "load_args": _without_secrets(self._load_args),
            "save_args": _without_secrets(self._save_args),
        }


def _without_secrets(options: dict[str, Any]) -> dict[str, Any]:
    return {
        key: "***" if re.search(SECRET, key, re.IGNORECASE) else value
        for key, value in options.items()
    }
