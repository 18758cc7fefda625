"""Schemas, however they are written down."""

import json
from collections.abc import Iterator
from typing import Any

from kedro.io import DatasetError
from pyspark.errors import ParseException
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampType,
)

from ..streams.errors import first_sentence
from ..streams.files import at
from ..streams.session import get_spark
from . import arguments

MARK = "_malformed"  # a column that tells what fits a schema from what does not
ADVICE = "it should hold what frame.schema.json() gives"
DIGITS: dict[type[DataType], int] = {  # of a whole number, in twos
    ByteType: 7,
    ShortType: 15,
    FloatType: 24,
    IntegerType: 31,
    DoubleType: 53,
    LongType: 63,
}
Schema = str | StructType | dict[str, Any] | None


def understood(schema: Schema) -> Schema:
    """Turn a mapping into a schema; a file is read later, when Spark runs."""
    if isinstance(schema, dict) and "filepath" not in schema:
        return _struct(schema, "schema")
    return schema


def loaded(schema: Schema) -> str | StructType | None:
    """Read a schema that is in a file of its own; others are ready to be used."""
    if not isinstance(schema, dict):
        return schema
    path = arguments.absolute(schema["filepath"])
    return _struct(read_json(path, ADVICE), f"schema file {path}")


def read_json(path: str, advice: str) -> Any:
    """Read a file that holds a schema, from wherever Spark can read."""
    text = at(path).read()
    if text is None:
        raise DatasetError(
            f"schema file {path} does not exist; correct the filepath under schema, or "
            "write the file with Path(filepath).write_text(frame.schema.json())"
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise DatasetError(
            f"schema file {path} is not JSON ({error}); {advice}"
        ) from error


def struct_of(schema: str | StructType) -> StructType:
    """Return a schema as a struct; Spark must be running to understand a text."""
    if isinstance(schema, StructType):
        return schema
    try:
        struct = StructType.fromDDL(schema)
    except ParseException as error:
        raise DatasetError(not_understood(schema, error)) from error
    assert isinstance(struct, StructType)
    return struct


def quoted(name: str) -> str:
    """Write a column's name so that no sign in it means anything."""
    return f"`{name.replace('`', '``')}`"


def is_lossless(kind: DataType, there: DataType) -> bool:
    """Whether no value of a type becomes another one in a table, without an error.

    A number that is too large is an error; what is nested in another way, or under
    another name, is Spark's to judge.
    """
    both = (kind, there)
    if isinstance(kind, ArrayType) and isinstance(there, ArrayType):
        return is_lossless(kind.elementType, there.elementType)
    if isinstance(kind, MapType) and isinstance(there, MapType):
        values = is_lossless(kind.valueType, there.valueType)
        return values and is_lossless(kind.keyType, there.keyType)
    if isinstance(kind, StructType) and isinstance(there, StructType):
        named = {field.name.lower(): field.dataType for field in there}
        pairs = [(f.dataType, named.get(f.name.lower(), f.dataType)) for f in kind]
        return all(is_lossless(*pair) for pair in pairs)
    if any(isinstance(k, ArrayType | MapType | StructType) for k in both):
        return True
    return _is_lossless_value(kind, there)


def _is_lossless_value(kind: DataType, there: DataType) -> bool:
    both = (kind, there)
    if all(isinstance(k, IntegralType | DecimalType) for k in both):
        return _decimals(kind) <= _decimals(there)
    if isinstance(kind, IntegralType) and isinstance(there, FractionalType):
        return DIGITS[type(kind)] <= DIGITS[type(there)]
    if {type(kind), type(there)} == {LongType, TimestampType}:
        return False
    spark: Any = get_spark()
    java = [spark._jsparkSession.parseDataType(k.json()) for k in both]
    return spark._jvm.org.apache.spark.sql.catalyst.expressions.Cast.canUpCast(*java)


def _decimals(kind: DataType) -> int:
    return kind.scale if isinstance(kind, DecimalType) else 0


def undividable(by: list[str], columns: list[str]) -> Iterator[str]:
    """Find what partition_by names and Spark would refuse once it starts."""
    there = [c.lower() for c in columns]
    if missing := [c for c in by if c.lower() not in there]:
        yield (
            f"partition_by names {', '.join(missing)}, and the rows have only "
            f"{', '.join(columns)}; correct it, or add the column in the node"
        )
    elif by and len(by) == len(columns):
        yield (
            "partition_by names all columns, so that nothing would be left for the "
            "files; leave one out"
        )


def misfit(field: StructField, there: DataType) -> str:
    """Say that a table would not keep a column's values as they are."""
    new, old = field.dataType.simpleString(), there.simpleString()
    return (
        f"column {field.name} is {new} here and {old} there, where its values could "
        f"change or be refused; cast it in the node, e.g. .cast('{old}'), or change the "
        "table's column"
    )


def not_understood(schema: Any, error: Exception) -> str:
    """Say how columns are written."""
    return (
        f"schema '{schema}' is not understood ({first_sentence(error)}); write columns "
        "as 'name TYPE, name TYPE', e.g. sku STRING, units INT"
    )


def _struct(content: Any, where: str) -> StructType:
    try:
        return StructType.fromJson(content)
    except Exception as error:
        raise DatasetError(
            f"{where} is JSON but not a schema; {ADVICE}, that is a mapping with "
            "type: struct and fields: a list of name, type, nullable, metadata"
        ) from error
