"""Lines of files that do not fit their schema."""

from typing import Any

from kedro.io import DatasetError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from . import schemas

READ_BY_LINE = ("csv", "json")


def refuse_where_unknown(file_format: str, payload: Any) -> None:
    """Refuse ``malformed_only`` where nothing can be malformed."""
    if not payload and file_format.lower() not in READ_BY_LINE:
        raise DatasetError(
            f"malformed_only finds what does not fit a schema, and file_format "
            f"'{file_format}' has none that is imposed on it; remove this entry and the "
            "node that reads it, or write csv, json, or kafka with a payload"
        )


def lines(reader: Any, schema: Any, folder: str | None) -> DataFrame:
    """Return the lines that do not fit, with the file they are from."""
    fields = schemas.struct_of(schema).fields
    whole = StructType([*fields, StructField(schemas.MARK, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": schemas.MARK}
    frame = reader.schema(whole).options(**options).load(folder)
    columns = [F.col(schemas.quoted(field.name)) for field in fields]
    reason = "it does not fit the schema; what could be understood: "
    return frame.where(F.col(schemas.MARK).isNotNull()).select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_modification_time").alias("timestamp"),
        F.col(schemas.MARK).alias("value"),
        F.concat(F.lit(reason), F.to_json(F.struct(*columns))).alias("reason"),
    )
