"""Tables of Delta and Iceberg: whether they are there, and upserts into them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from kedro.io import DatasetError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ..streams.errors import NO_LAKE, first_sentence, is_sparks
from ..streams.files import at
from ..streams.session import get_spark, has_own_catalog, warehouse
from .merges import Merge
from .schemas import is_lossless, misfit, quoted, undividable

LAKES = ("delta", "iceberg")  # they recognise a batch that comes again

# Options of readers that pass over what was changed, or report it, and do not fail.
CARELESS = {
    "delta": (
        "skipChangeCommits",
        "ignoreChanges",
        "ignoreFileDeletion",
        "readChangeData",
        "readChangeFeed",
    ),
    "iceberg": ("streaming-skip-overwrite-snapshots",),
}
COMPUTED = {"generatedColumns", "identityColumns", "allowColumnDefaults"}  # of Delta
NO_NAME = re.compile(r"[ ,;{}()\n\t=]")  # of a column of Delta, unless it maps names
MAPPING = "spark.databricks.delta.properties.defaults.columnMapping.mode"
COMMIT = re.compile(r"\d{20}\.(json|checkpoint)")  # in the log of Delta

# What makes Delta note a batch in the transaction that writes it, and refuse it later.
DELTA_STREAM = "spark.databricks.delta.write.txnAppId"
DELTA_BATCH = "spark.databricks.delta.write.txnVersion"
# What Iceberg adds to the summary of a snapshot; of which there is one a merge.
ICEBERG_NOTE = "spark.sql.iceberg.snapshot-property."

_making = Lock()


class LakeTable:
    """A table by its name, or, of Delta, by its folder."""

    def __init__(
        self, file_format: str, filepath: str | None, table: str | None
    ) -> None:
        """Refuse a table that could not be found."""
        self.file_format = file_format.lower()
        self.filepath = filepath
        self.table = table
        if self.file_format == "iceberg" and not table:
            raise DatasetError(
                "file_format 'iceberg' finds tables by their name; write table: "
                "lake.shop.stock, where lake is the catalog in conf/base/spark.yml"
            )
        if not filepath and not table:
            raise DatasetError(
                f"file_format '{file_format}' needs a place; add filepath: data/..., or "
                "table: stock"
            )
        if filepath and table:
            raise DatasetError(
                "filepath and table exclude each other, because they may be two places; "
                "remove one"
            )
        self.place = f"{self.file_format} {filepath or table}"

    @property
    def identifier(self) -> str:
        """What the table is called in SQL."""
        if self.table:
            return ".".join(map(quoted, self.table.split(".")))
        return f"delta.{quoted(str(self.filepath))}"

    def exists(self) -> bool:
        """Whether there is such a table."""
        if self.filepath:
            return _has_commit(self.filepath)
        self.find_again()
        return self._spark.catalog.tableExists(str(self.table))

    def create(self, schema: StructType, partition_by: list[str]) -> None:
        """Make the table, without rows; another stream, or process, may be faster."""
        with _making:  # until a table is whole, Delta takes it for somebody's files
            if self.exists():
                return
            try:
                self._make(schema, partition_by)
            except Exception as error:
                if not is_sparks(error) or not self.exists():
                    raise

    def _make(self, schema: StructType, partition_by: list[str]) -> None:
        maker = self._spark.createDataFrame([], schema).write.format(self.file_format)
        maker = maker.partitionBy(*partition_by)
        if self.table:
            maker.saveAsTable(self.table)
        else:
            maker.save(self.filepath)

    @property
    def folder(self) -> str | None:
        """Where its files are, if that is known without a catalog of somebody else's."""
        is_plain = self.file_format == "delta" and "." not in str(self.table)
        if self.table and is_plain and has_own_catalog():
            return f"{warehouse()}/{self.table}"
        return self.filepath

    def problems(
        self, schema: StructType, widens: bool = False, by: Sequence[str] = ()
    ) -> Iterator[str]:
        """Find columns whose values the table would change, or which it does not have.

        The latter are welcome where the writer widens the table.
        """
        if homeless := self._is_in_no_catalog():
            yield homeless
            return
        try:
            if self.exists():
                yield from self._misfits(schema, widens)
                yield from self._divided_otherwise(by)
            elif self.file_format == "delta":
                yield from self._unnameable(schema)
        except Exception as error:
            if not is_sparks(error):
                raise
            yield f"{self.place} cannot be read: {first_sentence(error)}"

    def _is_in_no_catalog(self) -> str | None:
        """Say that a table would not be found, because its catalog is none, or another's."""
        first, *others = str(self.table).split(".")
        if self.file_format == "delta" and others:
            catalog = str(self._spark.conf.get(f"spark.sql.catalog.{first}", ""))
            return f"{self.place}{NO_LAKE}" if ".iceberg." in catalog else None
        if self.file_format != "iceberg" or not has_own_catalog():
            return None
        names = (first, self._spark.catalog.currentCatalog())
        found = [self._spark.conf.get(f"spark.sql.catalog.{n}", "") for n in names]
        if found[0] or (found[1] and "delta" not in str(found[1])):
            return None
        name = ".".join(["lake", *(others if len(others) > 1 else [first, *others])])
        return (
            f"{self.place} begins with no catalog that conf/base/spark.yml knows; write "
            f"table: {name}, where lake is spark.sql.catalog.lake there"
        )

    def _unnameable(self, schema: StructType) -> Iterator[str]:
        """Find columns that a new table of Delta cannot have."""
        maps = str(self._spark.conf.get(MAPPING, "none")) != "none"
        if found := [c for c in schema.names if not maps and NO_NAME.search(c)]:
            yield (
                f"{self.place} can have no column {', '.join(found)}, because of a space "
                "or one of ,;{}()= in it; rename it in the node"
            )

    def _misfits(self, schema: StructType, widens: bool) -> Iterator[str]:
        same = _same_name(self._spark)
        there = {same(field.name): field for field in self.load().schema.fields}
        lost = [name for name in schema.names if same(name) not in there]
        if lost and not widens:
            yield (
                f"{self.place} has no column {', '.join(lost)}; add it there (ALTER "
                f"TABLE {self.identifier} ADD COLUMN ...), or leave it out in the node"
            )
        named = set(map(same, schema.names))
        required = {name for name, field in there.items() if not field.nullable}
        needed = sorted(required - named)
        if needed and not self._computes_columns:
            yield (
                f"{self.place} wants a value for {', '.join(needed)} (NOT NULL), and the "
                "rows have none; add the column in the node, or let the table do without "
                f"(ALTER TABLE {self.identifier} ALTER COLUMN ... DROP NOT NULL)"
            )
        for field in schema.fields:
            kind = there.get(same(field.name), field).dataType
            if not is_lossless(field.dataType, kind):
                yield f"{self.place}: {misfit(field, kind)}"

    def _divided_otherwise(self, by: Sequence[str]) -> Iterator[str]:
        """Find out whether Delta would refuse files that are divided in this way."""
        if not by or self.file_format != "delta":
            return
        there = list(self._detail.partitionColumns)
        if [c.lower() for c in by] != [c.lower() for c in there]:
            how = f"divided by {', '.join(there)}" if there else "not divided"
            yield (
                f"{self.place} is {how}, and partition_by names {', '.join(by)}; write "
                "there what the table has, or remove it"
            )

    def has_lost_rows(self, since: str | None) -> bool:
        """Whether snapshots have expired that a new stream of Iceberg would begin with.

        It begins with the oldest of all, or with those since a moment (in milliseconds).
        """
        if self.file_format != "iceberg" or not self.exists():
            return False
        snapshots = self._spark.table(f"{self.table}.snapshots")
        oldest = snapshots.orderBy("committed_at").first()
        if oldest is None or oldest.parent_id is None:
            return False
        if not str(since).isdigit():
            return True
        return oldest.committed_at.timestamp() * 1000 > int(str(since))

    @property
    def _computes_columns(self) -> bool:
        """Whether Delta may fill columns that the rows do not have."""
        if self.file_format != "delta":
            return False
        return bool(COMPUTED & set(self._detail.tableFeatures or ()))

    @property
    def _detail(self) -> Any:
        """What Delta tells of a table."""
        return self._spark.sql(f"DESCRIBE DETAIL {self.identifier}").first()

    def load(self) -> DataFrame:
        """Read the table as it is now."""
        return self._spark.sql(f"SELECT * FROM {self.identifier}")

    def find_again(self) -> None:
        """Tell Spark's own catalog, which forgets when it ends, of a table it had."""
        name, folder = str(self.table), self.folder
        if folder and not self._spark.catalog.tableExists(name):
            if _has_commit(folder):
                try:
                    self._spark.catalog.createTable(name, path=folder, source="delta")
                except AnalysisException:  # another stream has told it meanwhile
                    if not self._spark.catalog.tableExists(name):
                        raise

    @property
    def _spark(self) -> SparkSession:
        return get_spark(self.file_format)


class LakeUpserts:
    """Upserts into a table of Delta or Iceberg, one ``MERGE`` a batch."""

    def __init__(
        self, table: LakeTable, merge: Merge, create: bool, partition_by: list[str]
    ) -> None:
        self.place = self.identity = table.place
        self.formats = frozenset({table.file_format})
        self.merges_into = frozenset(filter(None, [table.filepath, table.table]))
        self._table = table
        self._merge = merge
        self._create = create
        self._partition_by = partition_by

    @property
    def folder(self) -> str | None:
        """Where the table's files are, if that is known."""
        return self._table.folder

    def problems(self, schema: StructType) -> Iterator[str]:
        """Find what the table as it is would refuse."""
        if found := list(self._table.problems(schema)):
            yield from found
        elif self._table.exists():
            yield from self._merge.roundings(self._table.load().schema)
        elif self._create:
            yield from self._merge.roundings(schema)
            yield from undividable(self._partition_by, schema.names)
        else:
            yield self._absent()

    def merge(self, rows: DataFrame, stream: str, batch_id: int | None) -> None:
        """Bring a batch into the table, unless it is there already."""
        new = self._merge.one_row_per_key(rows)
        if not self._table.exists():
            if not self._create:
                raise DatasetError(self._absent())
            new.write.format("noop").mode("overwrite").save()  # to see bad rows first
            self._table.create(new.schema, self._partition_by)
        spark = rows.sparkSession
        if batch_id is None:
            self._take_in(spark, new)
        elif not self._is_done(spark, stream, batch_id):
            with _noted(spark, self._notes(stream, batch_id)):
                self._take_in(spark, new)

    def _take_in(self, spark: SparkSession, rows: DataFrame) -> None:
        same = [f"old.{quoted(k)} = new.{quoted(k)}" for k in self._merge.keys]
        changes = self._merge.assignments(rows.columns, "new", quoted)
        changed = ", ".join(f"{quoted(c)} = {value}" for c, value in changes.items())
        update = f"WHEN MATCHED THEN UPDATE SET {changed} " if changed else ""
        columns = ", ".join(map(quoted, rows.columns))
        values = ", ".join(f"new.{quoted(c)}" for c in rows.columns)
        spark.sql(
            f"MERGE INTO {self._table.identifier} AS old "
            "USING {new} AS new "
            f"ON {' AND '.join(same)} {update}"
            f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})",
            new=rows,
        )

    def _notes(self, stream: str, batch_id: int) -> dict[str, str]:
        if self._table.file_format == "delta":
            return {DELTA_STREAM: stream, DELTA_BATCH: str(batch_id)}
        return {f"{ICEBERG_NOTE}{stream}": str(batch_id)}

    def _is_done(self, spark: SparkSession, stream: str, batch_id: int) -> bool:
        """Whether Iceberg has the batch; Delta looks for itself."""
        if self._table.file_format == "delta":
            return False
        (newest,) = spark.sql(
            f"SELECT max(CAST(summary['{stream}'] AS BIGINT)) AS batch "
            f"FROM {self._table.identifier}.snapshots"
        ).collect()
        return newest.batch is not None and newest.batch >= batch_id

    def _absent(self) -> str:
        return (
            f"{self.place} does not exist; create it, or write create: true and the "
            "first batch does"
        )

    def load(self) -> DataFrame:
        """Read the table as it is now."""
        return self._table.load()

    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._table.exists()


def _has_commit(folder: str) -> bool:
    """Whether a folder is a table of Delta; one that was only begun is none."""
    log = f"{folder}/_delta_log"
    # Without the first one, which Delta deletes after a month, there is the second: a
    # long log need not be listed.
    usual = (f"{log}/{0:020}.json", f"{log}/_last_checkpoint")
    return any(at(file).exists() for file in usual) or any(
        map(COMMIT.match, at(log).names())
    )


def _same_name(spark: SparkSession) -> Callable[[str], str]:
    """Return what makes names equal that Spark takes for one."""
    is_exact = str(spark.conf.get("spark.sql.caseSensitive")) == "true"
    return str if is_exact else str.lower


@contextmanager
def _noted(spark: SparkSession, notes: dict[str, str]) -> Iterator[None]:
    """Let what is written meanwhile carry a note of the batch."""
    for key, value in notes.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in notes:
            spark.conf.unset(key)
