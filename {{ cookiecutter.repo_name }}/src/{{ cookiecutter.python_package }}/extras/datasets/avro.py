"""Avro messages: plain, or with the id of a schema that a registry keeps."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kedro.io import DatasetError
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructType

from ..streams.session import get_spark
from . import arguments, schemas

if TYPE_CHECKING:
    from .registry import Registry

# A field with a default, which only a record that could be decoded has.
MARK = {"name": schemas.MARK, "type": "string", "default": ""}
IS_UNMARKED = f"_parsed.{schemas.MARK} IS NULL"
MAGIC = b"\x00"
HEAD = 5  # bytes before a registered record: a zero, and four of the schema's id
REGISTRY_KEYS = ("url", "subject", "version", "register")


class Parsed(NamedTuple):
    """The columns of a message as a struct, and what is wrong with it, if anything."""

    columns: Column
    reason: Column


class Avro:
    """Records of Avro's; a schema or a registry says of which fields."""

    def __init__(
        self, schema: Any, registry: dict[str, Any], credentials: dict[str, Any]
    ) -> None:
        _refuse_wrong_registry(schema, registry)
        self._schema = schema
        self._registers = bool(registry.get("register"))
        self._registry = _registry(registry, credentials) if registry else None

    def strict(
        self, value: Column, is_deletion: Column, written: StructType | None
    ) -> Column | None:
        """Decode plain records so that Spark itself fails, at no cost."""
        if self._registry or self._required(written):
            return None
        some = F.coalesce(value, F.when(~is_deletion, F.lit(b"")))
        return from_avro(some, json.dumps(self._plain(written)), {"mode": "FAILFAST"})

    def parse(self, value: Column, written: StructType | None) -> Parsed:
        """Decode values natively, whichever version of the schema wrote them."""
        if self._registry:
            return _framed(value, self._registry)
        schema = self._plain(written)
        reason = F.when(F.expr(IS_UNMARKED), "it is no Avro record of the schema")
        for name in self._required(written):
            is_absent = F.col("_parsed")[name].isNull()
            reason = reason.when(is_absent, f"it has no {name}, which is NOT NULL")
        return Parsed(_decoded(value, schema, schema), reason)

    def write(self, carried: StructType, topic: str | None) -> Column:
        """Encode rows by the schema of the entry, or by the registry's."""
        columns = F.struct(*[F.col(schemas.quoted(name)) for name in carried.names])
        if self._registry is None:
            return to_avro(columns, json.dumps(self._plain(carried)))
        if self._registers:
            schema = avro_of(carried)
            number = self._registry.register(schema, topic)
        else:
            number, schema = self._registry.newest()
        head = F.lit(MAGIC + number.to_bytes(4, "big"))
        return F.concat(head, to_avro(columns, json.dumps(schema)))

    def unstorable(self, carried: StructType, topic: str | None) -> Iterator[str]:
        """Find columns that the schema does not have, and fields without a column."""
        if self._registry and self._registers:
            yield from self._registry.refusals(avro_of(carried), topic)
            return
        schema = self._registry.newest()[1] if self._registry else self._plain(carried)
        fields = {field["name"] for field in schema["fields"]}
        if lost := sorted(set(carried.names) - fields):
            yield (
                f"column {lost[0]} is not in the Avro schema and would be lost; drop "
                "it, or add it to the schema"
            )
        if missing := sorted(fields - set(carried.names)):
            yield f"the Avro schema has a field {missing[0]}, and there is no such column"
        if not lost and not missing:
            yield from _unwritable(carried, schema)

    def _plain(self, written: StructType | None) -> dict[str, Any]:
        """Return the schema as Avro's."""
        given = self._given(written)
        return given if isinstance(given, dict) else avro_of(given)

    def _required(self, written: StructType | None) -> list[str]:
        """Return the columns that are NOT NULL; Avro's own schemas say it by types."""
        given = self._given(written)
        return (
            [] if isinstance(given, dict) else [f.name for f in given if not f.nullable]
        )

    def _given(self, written: StructType | None) -> dict[str, Any] | StructType:
        """Return the schema as it is written: as Avro's, or as Spark's."""
        schema = self._schema or written
        if isinstance(schema, dict) and "filepath" in schema:
            path = arguments.absolute(schema["filepath"])
            schema = schemas.read_json(path, "it should hold an Avro schema")
        if isinstance(schema, dict) and schema.get("type") == "record":
            return schema
        if isinstance(schema, dict):
            schema = schemas.understood(schema)
        if not isinstance(schema, str | StructType):
            raise DatasetError(
                "payload.format avro needs a schema; add schema: {filepath: "
                "conf/base/sensor.avsc}, or registry: {url: ..., subject: ...}"
            )
        return schemas.struct_of(schema)


def avro_of(schema: StructType) -> dict[str, Any]:
    """Return the Avro schema that Spark would write a struct by."""
    jvm: Any = get_spark("avro")._jvm
    struct = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    struct = struct.asNullable()  # a reader cannot know which columns never were null
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    try:
        return json.loads(converters.toAvroType(struct, False, "row", "").toString())
    except Py4JJavaError as error:
        raise DatasetError(
            f"Avro has no place for these columns: {_root_of(error)}; cast the column, or "
            "write payload.format: json"
        ) from error


def _unwritable(carried: StructType, schema: dict[str, Any]) -> Iterator[str]:
    """Let Spark say which column has a type that its field has no place for."""
    jvm: Any = get_spark("avro")._jvm
    struct = jvm.org.apache.spark.sql.types.DataType.fromJson(carried.json())
    wanted = jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema))
    try:
        jvm.org.apache.spark.sql.avro.AvroSerializer(struct, wanted, False)
    except Py4JJavaError as error:
        yield (
            f"a column does not fit the Avro schema: {_root_of(error)}; cast it, or "
            "change the schema"
        )


def _root_of(error: Py4JJavaError) -> str:
    """Return what is wrong with one column, and not with the whole row around it."""
    java = error.java_exception
    while java.getCause() is not None:
        java = java.getCause()
    return str(java.getMessage()).removesuffix(".")


def _framed(value: Column, registry: "Registry") -> Parsed:
    """Decode by the id in front, and rewrite in Python what has an id that is new.

    Messages with a known id pass Python as well, but without their bytes.
    """
    reader, known = registry.newest()[1], registry.all()
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")
    is_framed = F.substring(value, 1, 1) == F.lit(MAGIC)
    is_framed &= F.length(value) >= HEAD
    body = F.expr(f"substring(value, {HEAD + 1})")
    native = [
        _decoded(F.when(is_framed & (number == i), body), schema, reader)
        for i, schema in known.items()
    ]
    is_new = is_framed & ~number.isin(list(known))
    rewrite = F.udf(registry.newcomers(reader), "binary")
    new = _decoded(rewrite(F.when(is_new, value)), reader, reader)
    unknown = F.concat(
        F.lit("it is no record of schema "),
        number.cast("string"),
        F.lit(", or the registry has no such schema"),
    )
    no_frame = "it does not begin with a zero byte and the id of a schema"
    reason = F.when(~is_framed, no_frame).when(F.expr(IS_UNMARKED), unknown)
    return Parsed(F.coalesce(*native, new), reason)


def _decoded(value: Column, writer: dict[str, Any], reader: dict[str, Any]) -> Column:
    """Decode by what a record was written with, into what is wanted, and mark it."""
    marked = {**reader, "fields": [*reader["fields"], MARK]}
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(marked)}
    return from_avro(value, json.dumps(writer), options)


def _registry(config: dict[str, Any], credentials: dict[str, Any]) -> "Registry":
    """Load its client only for an entry that has one: every command would wait for it."""
    try:
        from .registry import Registry  # noqa: PLC0415
    except ImportError as error:
        raise DatasetError(
            "payload.registry needs packages that are not installed; type pip install "
            '-e ".[kafka]"'
        ) from error
    return Registry(config, credentials)


def _refuse_wrong_registry(schema: Any, registry: dict[str, Any]) -> None:
    arguments.refuse_unknown_keys(registry, REGISTRY_KEYS, "payload.registry")
    if registry and schema:
        raise DatasetError(
            "payload.schema and payload.registry exclude each other, because the "
            "registry has the schema; write one of them"
        )
    if registry and not registry.get("url"):
        raise DatasetError(
            "payload.registry does not say where it is; add url: http://127.0.0.1:8081, "
            "or http://127.0.0.1:8081/apis/ccompat/v7 for that of compose.yml"
        )
