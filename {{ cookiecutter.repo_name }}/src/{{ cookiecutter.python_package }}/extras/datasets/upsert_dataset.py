"""A table whose rows are updated by their key."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from . import arguments
from .lake_tables import LAKES, LakeTable, LakeUpserts
from .merges import Merge
from .postgres import PostgresTable

QUERY_ID = "sql.streaming.queryId"  # by which Spark tells streams apart
STORES = ("postgresql", *LAKES)


class UpsertDataset(AbstractDataset[DataFrame, DataFrame]):
    """Updates the rows of a table by their key, and adds those that are new.

    ```yaml
    processed.stock:
      type: {{ cookiecutter.python_package }}.extras.datasets.MicroBatchDataset
      datasets:
        - type: {{ cookiecutter.python_package }}.extras.datasets.UpsertDataset
          file_format: postgresql   # | delta | iceberg
          table: public.stock       # | filepath: data/03_primary/stock, for delta
          keys: [sku]               # what tells rows apart
          order_by: processed_at    # of several rows of a key the highest wins, of equal ones any; absent: an error
          add: [units]              # these are added to what is there
          create: true              # the first batch makes the table
          credentials: warehouse    # url, user, password
      save_args:
        output_mode: append         # add is for rows; totals come again with every change
        checkpoint: data/04_checkpoint/processed_stock
    ```

    The table notes, in the same transaction, which batch of which stream it took in
    last. A batch that is replayed after a crash changes nothing, so ``add`` counts
    every row once.
    """

    def __init__(  # noqa: PLR0913 - the keys of a catalog entry
        self,
        *,
        file_format: str,
        keys: list[str] | None = None,
        table: str | None = None,
        filepath: str | None = None,
        order_by: str | None = None,
        add: list[str] | None = None,
        create: bool = False,
        partition_by: list[str] | str | None = None,
        credentials: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Refuse every mistake that can be seen without a server.

        Args:
            file_format: What keeps the table: postgresql, delta or iceberg.
            keys: The columns that tell rows apart.
            table: Its name, with its schema before it if it is not the usual one.
            filepath: Its folder, instead of ``table``; only for delta.
            order_by: The column whose highest value is the newest row of a key.
            add: Columns whose values are added to those that are there.
            create: True to make the table with the first batch.
            partition_by: How a new table of delta or iceberg is divided.
            credentials: ``url``, ``user`` and ``password`` of postgresql's server.
            metadata: Ignored here, for other tools.
        """
        self.metadata = metadata
        if file_format not in STORES:
            raise DatasetError(
                f"file_format '{file_format}' takes no upserts; write one of "
                f"{', '.join(STORES)}"
            )
        if not isinstance(keys, list) or not keys:
            raise DatasetError(
                "keys is no list of columns, so no row could be told from another; write "
                "e.g. keys: [sku]"
            )
        if not isinstance(create, bool):
            raise DatasetError(f"create is {create!r}; write true, or leave it out")
        if not isinstance(add or [], list):
            raise DatasetError(f"add is no list of columns; write e.g. add: [{add}]")
        if not isinstance(order_by or "", str):
            raise DatasetError(
                "order_by is no name of a column; write e.g. order_by: arrived_at"
            )
        self._merge = Merge(keys, order_by, list(add or ()))
        for what, names in (("keys", keys), ("add", self._merge.add)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise DatasetError(f"{what} names {twice[0]} twice; leave one out")
        if clash := set(self._merge.add) & {*keys, order_by}:
            raise DatasetError(
                f"add names {', '.join(map(str, clash))}, which is a key or order_by, "
                "and those are not added up; remove it from add"
            )
        self._store: PostgresTable | LakeUpserts
        if file_format == "postgresql":
            self._refuse_what_postgresql_lacks(table, filepath, partition_by)
            secrets = deepcopy(credentials or {})
            self._store = PostgresTable(str(table), secrets, self._merge, create)
        else:
            if credentials:
                raise DatasetError(
                    f"credentials do nothing for file_format '{file_format}', whose files "
                    "Spark reads by itself; name them in the environment's spark.yml, "
                    "with credentials: NAME"
                )
            folder = arguments.absolute(filepath) if filepath else None
            lake = LakeTable(file_format, folder, table)
            by = arguments.columns({"partition_by": partition_by}, "partition_by")
            self._store = LakeUpserts(lake, self._merge, create, by)

    def __new__(cls, *_: Any, **config: Any) -> "UpsertDataset":
        """Refuse unknown keys with the right spelling."""
        arguments.refuse_unknown(cls, config)
        return super().__new__(cls)

    @staticmethod
    def _refuse_what_postgresql_lacks(table: Any, filepath: Any, parts: Any) -> None:
        if not table or filepath or parts:
            raise DatasetError(
                "file_format 'postgresql' needs the name of a table, and has neither "
                "filepath nor partition_by; write table: stock, and nothing of these"
            )

    @property
    def place(self) -> str:
        """Which table it is, for people to read."""
        return self._store.place

    @property
    def identity(self) -> Any:
        """What two entries of one table, written differently, have in common."""
        return self._store.identity

    @property
    def paths(self) -> list[str]:
        """Every folder that is read or written here, where it is known."""
        return list(filter(None, [self._store.folder]))

    @property
    def merges_into(self) -> frozenset[str]:
        """The table, as an entry that reads it as a stream calls it."""
        return self._store.merges_into

    @property
    def reads_again(self) -> bool:
        """Whether a batch is read more than once: a ``MERGE`` does so."""
        return isinstance(self._store, LakeUpserts)

    @property
    def adds(self) -> bool:
        """Whether values are added to those that are there."""
        return bool(self._merge.add)

    @property
    def formats(self) -> frozenset[str]:
        """The formats and stores that Spark must know, which come in packages."""
        return self._store.formats | arguments.stores(*self.paths)

    def problems(self, schema: StructType) -> Iterator[str]:
        """Find what would fail with the first batch."""
        if found := list(self._merge.problems(schema)):
            yield from found
            return
        yield from self._store.problems(schema)

    def save(self, data: DataFrame) -> None:
        """Merge rows that are no batch of a stream."""
        self._store.merge(data, "by_hand", None)

    def save_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Merge a batch of a stream, unless it was merged before."""
        stream = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert stream is not None, "only a stream has batches"
        self._store.merge(batch, stream, batch_id)

    def load(self) -> DataFrame:
        """Read the table as it is now."""
        return self._store.load()

    def _exists(self) -> bool:
        return self._store.exists()

    def _describe(self) -> dict[str, Any]:
        return {"table": self.place, **vars(self._merge)}
