"""How the rows of a batch become rows of a table that is keyed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, NumericType, StructType

from .schemas import quoted

REST, COUNT = "_rest", "_count"
ALL = 38  # digits that a decimal can have
LONG = 28  # digits of one whose sum would have all
SURE = 6  # digits behind the point that Spark never gives up


@dataclass(frozen=True)
class Merge:
    """What tells rows apart, which of several is the newest, and what is added up."""

    keys: list[str]
    order_by: str | None
    add: list[str]

    def problems(self, schema: StructType) -> Iterator[str]:
        """Find columns that are named here and that the rows do not have."""
        named = {"keys": self.keys, "add": self.add}
        named["order_by"] = [self.order_by] if self.order_by else []
        for what, columns in named.items():
            if missing := [c for c in columns if c not in schema.names]:
                yield (
                    f"{what} names {', '.join(missing)}, and the rows have only "
                    f"{', '.join(schema.names)}; correct {what}, or add the column in "
                    "the node"
                )
        for column in set(self.add) & set(schema.names):
            kind = schema[column].dataType
            if not isinstance(kind, NumericType):
                yield (
                    f"add names {column}, which is {kind.simpleString()} and no number; "
                    "remove it from add, and the newest value is kept"
                )

    def roundings(self, table: StructType) -> Iterator[str]:
        """Find totals to which Spark could not add without a loss of digits."""
        added = {column.lower() for column in self.add}
        for field in table:
            kind = field.dataType
            if field.name.lower() not in added or not isinstance(kind, DecimalType):
                continue
            if kind.precision == ALL and kind.scale > SURE:
                yield (
                    f"column {field.name} is {kind.simpleString()}, and what is added to "
                    "that loses digits behind the point, because a sum may have one "
                    f"digit more and {ALL} are all there can be; make it "
                    f"DECIMAL({ALL - 1},{kind.scale}), in the node and in the table"
                )

    def one_row_per_key(self, rows: DataFrame) -> DataFrame:
        """Leave the newest row of each key; fail where it cannot be known.

        One table cannot take two rows of a key at once, and a row without a key would
        never be found again. Totals have the types of sums: there may be many.
        """
        others = [c for c in rows.columns if c not in self.keys and c not in self.add]
        sums = [_total(c, rows.schema[c].dataType) for c in self.add]
        keys = [self._required(key).alias(key) for key in self.keys]
        grouped = rows.groupBy(*keys).agg(
            self._newest(others).alias(REST), F.count("*").alias(COUNT), *sums
        )
        rest = F.col(REST)
        if others and not self.order_by:
            rest = F.when(F.col(COUNT) == 1, rest).otherwise(self._ambiguous())
        newest = [rest.getField(column).alias(column) for column in others]
        of_all = {c: _column(c) for c in (*self.keys, *self.add)}
        of_all |= dict(zip(others, newest, strict=True))
        return grouped.select(*[of_all[column] for column in rows.columns])

    def _newest(self, others: list[str]) -> Column:
        row = F.struct(*[_column(c) for c in others]) if others else F.lit(None)
        if not self.order_by:
            return F.first(row)
        return F.max_by(row, F.struct(_column(self.order_by)))  # a null comes first

    def _required(self, key: str) -> Column:
        text = f"key column {key} is null in a row, which could never be updated; "
        advice = "fill it in the node, or leave such rows out"
        column = _column(key)
        return F.when(column.isNotNull(), column).otherwise(
            F.raise_error(F.lit(text + advice))
        )

    def _ambiguous(self) -> Column:
        key = F.to_json(F.struct(*[_column(key) for key in self.keys]))
        text = "a batch has several rows with the key %s, and nothing says which is "
        advice = "the newest; name a column under order_by, and the highest wins"
        return F.raise_error(F.format_string(text + advice, key))

    def assignments(
        self, columns: list[str], new: str, quote: Callable[[str], str]
    ) -> dict[str, str]:
        """Return what a column becomes where its key is there already, in SQL.

        The row that is there is called ``old``. One that is older than it changes only
        what is added up.
        """
        found = {}
        for column in [c for c in columns if c not in self.keys]:
            name = quote(column)
            if column in self.add:
                found[column] = f"coalesce(old.{name}, 0) + coalesce({new}.{name}, 0)"
            elif self.order_by:
                order = quote(self.order_by)
                newer = f"old.{order} IS NULL OR {new}.{order} >= old.{order}"
                found[column] = (
                    f"CASE WHEN {newer} THEN {new}.{name} ELSE old.{name} END"
                )
            else:
                found[column] = f"{new}.{name}"
        return found


def _total(name: str, kind: DataType) -> Column:
    total = F.sum(_column(name))
    # Spark rounds what it adds to a sum that has all the digits there can be.
    is_long = isinstance(kind, DecimalType) and kind.precision >= LONG
    return (total.cast(kind) if is_long else total).alias(name)


def _column(name: str) -> Column:
    return F.col(quoted(name))
