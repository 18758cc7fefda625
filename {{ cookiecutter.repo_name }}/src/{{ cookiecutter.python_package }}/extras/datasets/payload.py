"""How the value of a Kafka message becomes columns, and back."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from kedro.io import DatasetError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ..streams.errors import first_sentence
from ..streams.session import get_spark
from . import arguments, kafka, schemas
from .avro import Avro, Parsed

FORMATS = ("json", "avro", "csv", "text", "binary")
KEYS = ("format", "schema", "registry", "options", "keep", "malformed")
SINK_KEYS = ("key", "topic", "headers")
MALFORMED = ("fail", "drop", "keep")
MESSAGE = ("key", "timestamp", "partition", "offset", "topic", "headers")
NESTED = (ArrayType, MapType, StructType)
IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")  # what Spark takes without quotes

# Spark would cut off microseconds, and blanks around a text, which would not come back.
PRECISE = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
OURS = ("mode", "columnnameofcorruptrecord")  # options that are decided here
LEFT_OUT = "malformed_messages"  # how many, in what Spark observes
_reads = count()

SENTENCE = (
    "message %d of partition %d of topic %s cannot be read: %s; to go on without it, set "
    "payload.malformed: drop, or keep"
)
DETECTED = "Malformed records are detected"  # as Spark says it
TOMBSTONE = "it has no value (a tombstone)"
EMPTY = "it is empty"
NO_TEXT = "it is not UTF-8"


class Payload:
    """The ``payload`` of a catalog entry."""

    def __init__(self, config: dict[str, Any], credentials: dict[str, Any]) -> None:
        """Refuse every mistake that can be seen without Spark."""
        arguments.refuse_unknown_keys(config, (*KEYS, *SINK_KEYS), "payload")
        self.format = _one_of("format", config.get("format"), FORMATS)
        self.malformed = _one_of(
            "malformed", config.get("malformed", "fail"), MALFORMED
        )
        self._keep = config.get("keep") or []
        # Entries for which these are equal agree about what is malformed.
        self.understanding = {
            **{key: config.get(key) for key in ("format", "schema", "registry")},
            "options": config.get("options") or {},
        }
        self.keeps_deletions = "key" in self._keep
        self.routes = {k: config[k] for k in SINK_KEYS if config.get(k)}
        self._codec = self._built(config, credentials)
        for field in self._keep:
            _one_of("keep", field, MESSAGE)

    def _built(self, config: dict[str, Any], credentials: dict[str, Any]) -> Any:
        if config.get("options") and self.format not in ("csv", "json"):
            raise DatasetError(
                f"payload.options are for the formats csv and json, and this is "
                f"{self.format}; remove them"
            )
        for key in config.get("options") or {}:
            if key.lower() in OURS:
                raise DatasetError(
                    f"'{key}' in payload.options is decided by payload.malformed; write "
                    "fail, drop or keep there, and remove it"
                )
        if self.format == "avro":
            return Avro(config.get("schema"), config.get("registry") or {}, credentials)
        if config.get("registry"):
            raise DatasetError(
                f"payload.registry is for format avro, and this is {self.format}; "
                "remove it, or write format: avro"
            )
        schema = schemas.understood(config.get("schema"))
        if self.format in ("text", "binary"):
            return _Bare(self.format, schema)
        return _Text(self.format, schema, config.get("options") or {})

    @property
    def needs_headers(self) -> bool:
        """Whether Spark must be asked for the headers of messages."""
        return "headers" in self._keep

    # --- reading -------------------------------------------------------------

    def decode(
        self, messages: DataFrame, name: str, written: StructType | None
    ) -> DataFrame:
        """Return the columns of the values; what is malformed fails, or is counted."""
        kept = [self._kept(field) for field in self._keep]
        strict = self._strict(written) if self.malformed == "fail" else None
        if strict is not None:
            parsed = messages.withColumn("_parsed", strict)
            return parsed.select(*self._columns(parsed), *kept)
        parsed = self._parsed(messages, written)
        columns = self._columns(parsed)
        is_malformed = F.col("_reason").isNotNull()
        if self.malformed == "fail":
            # Not by a filter: Spark would parse a message for it, and then once more.
            checked = F.when(~is_malformed, F.col("_parsed")).otherwise(_failure())
            return parsed.withColumn("_parsed", checked).select(*columns, *kept)
        left_out = F.count_if(is_malformed).alias(LEFT_OUT)
        # Spark wants another name for each time that a stream reads the entry.
        counted = parsed.observe(f"{name} {next(_reads)}", left_out)
        return counted.where(~is_malformed).select(*columns, *kept)

    def _strict(self, written: StructType | None) -> Column | None:
        """Decode so that Spark itself fails, which costs nothing, where it can.

        It does not say which message it was; ``first_rejected`` finds it afterwards.
        """
        value = F.col("value")
        is_deletion = value.isNull() if "key" in self._keep else F.lit(False)
        return self._codec.strict(value, is_deletion, written)

    def first_rejected(self, messages: DataFrame, written: StructType | None) -> str:
        """Say which message is the first that cannot be read, and why; empty if none."""
        rejected = self.rejected(messages, written)
        if self._strict(written) is not None:  # which lets these pass
            rejected = rejected.where(F.col("reason") != NO_TEXT)
        found = rejected.orderBy("topic", "partition", "offset").first()
        if found is None:
            return ""
        where = (found.offset, found.partition, found.topic)
        return SENTENCE % (*where, found.reason)

    def rejected(self, messages: DataFrame, written: StructType | None) -> DataFrame:
        """Return the messages that ``decode`` leaves out, as they came, and why."""
        parsed = self._parsed(messages, written)
        return parsed.where(F.col("_reason").isNotNull()).select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            F.col("_reason").alias("reason"),
        )

    def _parsed(self, messages: DataFrame, written: StructType | None) -> DataFrame:
        value = F.col("value")
        parsed: Parsed = self._codec.parse(value, written)
        frame = messages.withColumn("_parsed", parsed.columns)
        reason = F.when(value.isNull(), self._tombstone())
        if self.format not in ("text", "binary"):
            reason = reason.when(F.length(value) == 0, EMPTY)
        reason = reason.otherwise(parsed.reason).cast("string")
        return frame.withColumn("_reason", reason)

    def _tombstone(self) -> Column:
        """With its key, a message without a value says what was deleted."""
        return F.lit(None if "key" in self._keep else TOMBSTONE)

    def _kept(self, field: str) -> Column:
        """A key is a text, unless the value is bytes, too."""
        is_text = field == "key" and self.format != "binary"
        column = F.col(field).cast("string") if is_text else F.col(field)
        return column.alias(f"message_{field}")

    def _columns(self, parsed: DataFrame) -> list[str]:
        return [f"_parsed.{schemas.quoted(field)}" for field in self._fields(parsed)]

    def _fields(self, parsed: DataFrame) -> list[str]:
        struct = parsed.schema["_parsed"].dataType
        assert isinstance(struct, StructType)
        fields = [name for name in struct.names if name != schemas.MARK]
        kept = {f"message_{field}" for field in self._keep}
        clash = {name for name in fields if name.lower() in kept}
        if clash:
            raise DatasetError(
                f"the payload has a column {min(clash)}, which payload.keep would add "
                "as well; leave it out of keep, or rename the column in the schema"
            )
        return fields

    # --- writing -------------------------------------------------------------

    def encode(self, rows: DataFrame, topic: str | None) -> DataFrame:
        """Return messages: a value made of all columns, and what routes them."""
        value = self._codec.write(self._carried(rows.schema), topic)
        routes = [_route(name, rows.schema[c]) for name, c in self.routes.items()]
        return rows.select(value.alias("value"), *routes)

    def unstorable(self, schema: StructType, topic: str | None) -> Iterator[str]:
        """Find what a message has no place for."""
        for key, column in self.routes.items():
            if column not in schema.names:
                yield (
                    f"payload.{key} is {column}, and there is no such column; there are "
                    f"{', '.join(schema.names)}"
                )
        routes = {k: schema[c] for k, c in self.routes.items() if c in schema.names}
        yield from kafka.wrong_types({k: _sent(k, f) for k, f in routes.items()})
        yield from self._codec.unstorable(self._carried(schema), topic)

    def _carried(self, schema: StructType) -> StructType:
        """The key stays in the value, so that a reader needs nothing else."""
        routes = {c for k, c in self.routes.items() if k != "key"}
        if self.format in ("text", "binary"):
            routes |= set(self.routes.values())
        return StructType([field for field in schema if field.name not in routes])


class _Text:
    """JSON or CSV: one text for all columns."""

    def __init__(
        self, format: str, schema: schemas.Schema, options: dict[str, Any]
    ) -> None:
        self._format = format
        self._schema = schema
        self._options = options

    def strict(
        self, value: Column, is_deletion: Column, written: StructType | None
    ) -> Column | None:
        schema = self._struct(written)
        if self._format != "json" or not all(field.nullable for field in schema):
            return None
        text = F.nullif(value.cast("string"), F.lit(""))
        broken = F.lit("{")  # in place of nothing, so that it fails
        some = F.coalesce(text, F.when(~is_deletion, broken))
        options = {**_texts(self._options), "mode": "FAILFAST"}
        # Of blanks Spark makes nothing, and does not fail.
        blank = F.raise_error(F.lit(f"{DETECTED}: blanks")).cast(schema)
        parsed = F.from_json(some, schema, options)
        return F.coalesce(parsed, F.when(~is_deletion, blank))

    def _struct(self, written: StructType | None) -> StructType:
        schema = schemas.struct_of(schemas.loaded(self._schema) or written or "")
        if not schema.fields:
            raise DatasetError(
                f"payload.format {self._format} needs a schema to read messages by; "
                "add schema: sku STRING, units INT under payload"
            )
        return schema

    def parse(self, value: Column, written: StructType | None) -> Parsed:
        schema = self._struct(written)
        read = F.from_json if self._format == "json" else F.from_csv
        nullable = [StructField(f.name, f.dataType) for f in schema]
        whole = StructType([*nullable, StructField(schemas.MARK, StringType())])
        options = {
            **_texts(self._options),
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": schemas.MARK,
        }
        given = whole if self._format == "json" else _ddl(whole)
        columns = read(value.cast("string"), given, options)  # type: ignore[arg-type]
        parsed = F.col("_parsed")
        is_bad = parsed.isNull() | parsed[schemas.MARK].isNotNull()
        for field in schema:
            if not field.nullable:
                is_bad |= parsed[field.name].isNull()
        reason = f"it is not {self._format} of the schema {_ddl(schema)}"
        # Spark would put a sign of its own in place of what it cannot read.
        is_text = F.is_valid_utf8(value.cast("string"))
        return Parsed(columns, F.when(is_bad, reason).when(~is_text, NO_TEXT))

    def write(self, carried: StructType, topic: str | None) -> Column:
        columns = F.struct(*[F.col(schemas.quoted(name)) for name in carried.names])
        options = {**PRECISE, **_texts(self._options)}
        return (F.to_json if self._format == "json" else F.to_csv)(columns, options)

    def unstorable(self, carried: StructType, topic: str | None) -> Iterator[str]:
        nested = self._format == "csv" and list(
            nested_in_csv(carried, "payload.format: json")
        )
        yield from nested or _unwritable(carried, self.write(carried, topic))


class _Bare:
    """A text or bytes: the value is the only column."""

    def __init__(self, format: str, schema: schemas.Schema) -> None:
        self._type = "string" if format == "text" else "binary"
        self._format = format
        self._schema = schema

    def strict(self, *_: Any) -> None:
        return None

    def parse(self, value: Column, written: StructType | None) -> Parsed:
        schema = schemas.loaded(self._schema)
        names = schemas.struct_of(schema).names if schema else ["value"]
        if len(names) != 1:
            raise DatasetError(
                f"payload.format {self._format} makes one column of a message, and the "
                f"schema has {len(names)}; write e.g. schema: line {self._type.upper()}"
            )
        column = F.struct(value.cast(self._type).alias(names[0]))
        return Parsed(column, F.lit(None))

    def write(self, carried: StructType, topic: str | None) -> Column:
        return F.col(schemas.quoted(carried.names[0])).cast(self._type)

    def unstorable(self, carried: StructType, topic: str | None) -> Iterator[str]:
        if len(carried) != 1:
            yield (
                f"payload.format {self._format} writes one column, and here are "
                f"{len(carried)} ({', '.join(carried.names)}), of which the others would "
                "be lost; select one, or write format: json"
            )
        elif isinstance(kind := carried[0].dataType, NESTED):
            yield (
                f"column {carried[0].name} is of type {kind.typeName()}, and "
                f"payload.format {self._format} has no place for that; write format: json"
            )
        else:
            yield from _unwritable(carried, self.write(carried, topic))


def nested_in_csv(schema: StructType, instead: str) -> Iterator[str]:
    """Find columns that a line of CSV has no place for."""
    for field in schema:
        if isinstance(field.dataType, NESTED):
            yield (
                f"column {field.name} is of type {field.dataType.typeName()}, and csv "
                f"has no place for that; select its parts (e.g. {field.name}.start AS "
                f"start), or set {instead}"
            )


def _failure() -> Column:
    """Stop the stream, and say which message it was."""
    return F.raise_error(
        F.format_string(SENTENCE, "offset", "partition", "topic", "_reason")
    )


def _route(name: str, field: StructField) -> Column:
    column = F.col(schemas.quoted(field.name))
    return column.cast(_sent(name, field).dataType).alias(name)


def _sent(name: str, field: StructField) -> StructField:
    """Return a column as it is sent: a text, unless it is bytes, or headers."""
    if name == "headers" or isinstance(field.dataType, BinaryType):
        return field
    return StructField(field.name, StringType())


def _unwritable(carried: StructType, value: Column) -> Iterator[str]:
    """Let Spark say which columns it cannot make a value of."""
    try:
        get_spark("kafka").createDataFrame([], carried).select(value)
    except AnalysisException as error:
        yield (
            f"Spark cannot make messages of these columns: {first_sentence(error)}; "
            "cast the column, or write payload.format: json"
        )


def _one_of(key: str, given: Any, known: tuple[str, ...]) -> str:
    if given not in known:
        what = "is missing" if given is None else f"'{given}' does not exist"
        choice = f"{', '.join(known[:-1])} or {known[-1]}"
        raise DatasetError(f"payload.{key} {what}; write {choice}")
    return given


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()
    }


def _ddl(schema: StructType) -> str:
    return ", ".join(
        f"{f.name if IDENTIFIER.fullmatch(f.name) else schemas.quoted(f.name)} "
        f"{f.dataType.simpleString()}{'' if f.nullable else ' not null'}"
        for f in schema
    )
