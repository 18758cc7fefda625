"""A table of PostgreSQL that takes upserts.

Executors write a batch into a table of its own, side by side. One transaction then
merges that into the table, and notes the batch, so that one that comes again is known.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from kedro.io import DatasetError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..streams.errors import SECRET_VALUE, causes, first_sentence, is_sparks
from ..streams.session import get_spark
from .merges import Merge
from .schemas import is_lossless, misfit, quoted

DONE = "spark_batches"  # the table that notes, for each stream, its last batch
LONGEST_NAME = 63  # of a table, in bytes
AS_SENT = "_key_as_sent"  # a column of a stage: what Spark took the key for
OF_ATTEMPT = len("__12345678_12345678")  # what a stage is called beside its table
SECONDS = 10  # that a server may take to answer
NOTICED = {  # a server that is gone without a word, a minute into the merge
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
PATIENCE = "500ms"  # for whoever holds what is left of an earlier batch
# What PostgreSQL says of a row; before that, its client shows the statement.
REFUSED = re.compile(r"ERROR: (.*?)\s*(?:Call getNextException|$)")
SQL_ERRORS = ("java.sql.BatchUpdateException", "org.postgresql.util.PSQLException")
ANY_NUMBER = DecimalType(38, 18)  # how Spark reads a numeric without limits


class BadBatch(DatasetError, ValueError):
    """Rows that another try would find as they are."""


class PostgresTable:
    """Where the rows of a keyed table are, and how a batch gets there."""

    formats = frozenset({"postgresql"})
    folder = None  # its files are the server's
    merges_into: frozenset[str] = frozenset()  # no stream of Spark's reads it

    def __init__(
        self, table: str, connection: dict[str, Any], merge: Merge, create: bool
    ) -> None:
        """Refuse what can be seen without a server."""
        self.table = table
        self.place = f"postgresql {table}"
        self._connection = {k: v for k, v in connection.items() if k != "driver"}
        self._merge = merge
        self._create = create
        url = str(self._connection.pop("url", ""))
        names_secret = "@" in url or SECRET_VALUE.search(url)
        if not url.startswith("jdbc:postgresql://") or names_secret:
            raise DatasetError(
                "credentials need a url without name and password, e.g. url: "
                "jdbc:postgresql://127.0.0.1:5432/warehouse, and beside it user and "
                "password"
            )
        self._url = url
        self._client = _client()
        *schema, name = table.split(".")
        self._schema, self._name = schema, name
        self.identity = (*_server(url), *(schema or ["public"]), name)

    # --- before a stream starts ----------------------------------------------

    def problems(self, schema: StructType) -> Iterator[str]:
        """Find what the server, or the table as it is, would refuse."""
        for field in schema.fields:
            if _is_nested(field.dataType):
                yield (
                    f"column {field.name} is {field.dataType.simpleString()}, which "
                    "PostgreSQL has no column for; turn it into text with to_json in "
                    "the node (into a jsonb column, if you like)"
                )
        try:
            with self._connect() as connection:
                yield from self._misfits(connection, schema)
        except self._client.Error as error:
            yield f"{self.place} at {self._url}: {' '.join(str(error).split())}"

    def _misfits(self, connection: Any, schema: StructType) -> Iterator[str]:
        there, columns = self._columns(connection), schema.names
        if there is None:
            if not self._create:
                yield self._absent()
            elif not self._has_schema(connection):
                where = ".".join(self._schema)
                yield f"{self.place} needs schema {where}; CREATE SCHEMA {where}"
            return
        if lost := [c for c in columns if c not in there]:
            yield (
                f"{self.place} has no column {', '.join(lost)}; add it there (ALTER "
                f"TABLE {self.table} ADD COLUMN ...), or leave it out in the node"
            )
        if needed := self._needed(connection, columns):
            yield (
                f"{self.place} wants a value for {', '.join(needed)} (NOT NULL, without "
                "a default), and the rows have none; add the column in the node, or "
                f"give it a default (ALTER TABLE {self.table} ALTER COLUMN ... SET "
                "DEFAULT ...)"
            )
        if not lost:
            yield from self._losses(schema)
        if not self._is_keyed(connection):
            yield (
                f"{self.place} has no unique index on {', '.join(self._merge.keys)}, so "
                "PostgreSQL cannot tell which row to update; ALTER TABLE "
                f"{self.table} ADD PRIMARY KEY ({', '.join(self._merge.keys)})"
            )

    def _losses(self, schema: StructType) -> Iterator[str]:
        """Find columns of which PostgreSQL would round or cut the values."""
        table = f"(SELECT {_listed(schema.names)} FROM {self._quoted(self._name)}) AS t"
        try:
            there = self._read(table, preferTimestampNTZ=True).schema
        except Exception as error:
            if not is_sparks(error):
                raise
            yield f"{self.place} cannot be read: {first_sentence(error)}"
            return
        for field in schema.fields:
            kind = there[field.name].dataType
            if not _is_kept(field, kind):
                yield f"{self.place}: {misfit(field, kind)}"
            is_order = field.name == self._merge.order_by
            if is_order and _is_ordered_otherwise(field, kind):
                is_number = isinstance(kind, NumericType)
                why = "9 comes after 10" if is_number else "the order may be another"
                yield (
                    f"order_by names {field.name}, which is text here and "
                    f"{kind.simpleString()} in {self.place}: as text, {why}; cast it in "
                    f"the node, e.g. .cast('{kind.simpleString()}')"
                )

    def _absent(self) -> str:
        return (
            f"{self.place} does not exist; create it, or write create: true and the "
            "first batch does"
        )

    # --- batches -------------------------------------------------------------

    def merge(self, rows: DataFrame, stream: str, batch_id: int | None) -> None:
        """Bring a batch into the table, unless it is there already.

        Every attempt has a stage of its own: one that was taken for dead, and is not,
        can neither empty ours nor add to it.
        """
        stages = f"{_cut(self._name, LONGEST_NAME - OF_ATTEMPT)}__{stream[:8]}_"
        stage = f"{stages}{uuid4().hex[:8]}"
        with self._connect() as connection:
            if self._is_done(connection, stream, batch_id):
                return
            left = [] if batch_id is None else self._tables(connection, stages)
            self._prepare(connection, stage, rows.schema)
        self._drop(*left)
        try:
            self._fill(stage, rows)
            with self._connect() as connection:
                if batch_id is None or self._note(connection, stream, batch_id):
                    self._take_in(connection, stage, rows.schema)
                connection.execute(f"DROP TABLE {self._quoted(stage)}")
        except Exception:
            self._drop(stage)
            raise

    def _drop(self, *stages: str) -> None:
        """Leave nothing of batches that failed; wait for nobody who holds a stage."""
        for stage in stages:
            with suppress(self._client.Error), self._connect() as connection:
                connection.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
                connection.execute(f"DROP TABLE IF EXISTS {self._quoted(stage)}")

    def _prepare(self, connection: Any, stage: str, schema: StructType) -> None:
        """Make room with the types of the table; if there is none, Spark chooses them.

        Text stays text until it is merged: a column of another type would refuse nulls.
        """
        texts, name = _texts(schema), self._quoted(self._name)
        columns = [
            f"NULL::text AS {_quoted(c)}" if c in texts else _quoted(c)
            for c in (*schema.names, AS_SENT)
        ]
        if self._columns(connection) is not None:
            connection.execute(
                f"CREATE TABLE {self._quoted(stage)} AS SELECT {', '.join(columns)} "
                f"FROM {name} WITH NO DATA"
            )
        elif not self._create:
            raise DatasetError(self._absent())

    def _fill(self, stage: str, rows: DataFrame) -> None:
        """Write a batch side by side; what one task has written outlives the server."""
        sent = F.to_json(F.struct(*map(quoted, self._merge.keys)))
        staged = self._merge.one_row_per_key(rows).withColumn(AS_SENT, sent)
        writer = staged.write.format("jdbc")
        try:
            writer.options(**self._options(stage)).mode("append").save()
        except Exception as error:
            raise self._named(error) from None

    def _named(self, error: Exception) -> Exception:
        """Call an error what PostgreSQL calls it: a value that it refuses stays refused."""
        try:
            mistake: Any = self._client.errors.lookup(_sql_state(error))
        except KeyError:
            return error
        said = first_sentence(error)
        found = REFUSED.search(said)
        return mistake(found[1] if found else said)

    def _take_in(self, connection: Any, stage: str, schema: StructType) -> None:
        """Merge, in the order of keys, so that two writers seldom block each other."""
        source, target = self._quoted(stage), self._quoted(self._name)
        columns, keys = schema.names, _listed(self._merge.keys)
        if self._columns(connection) is None:
            self._await_turn(connection, target)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {target} AS "
                f"SELECT {_listed(columns)} FROM {source} WITH NO DATA"
            )
            if not self._is_keyed(connection):
                connection.execute(f"ALTER TABLE {target} ADD PRIMARY KEY ({keys})")
        values = self._values(connection, schema)
        understood = ", ".join(values[key] for key in self._merge.keys)
        self._refuse_one_key_in_two_spellings(connection, source, understood)
        changes = self._merge.assignments(columns, "excluded", _quoted)
        changed = ", ".join(f"{_quoted(c)} = {value}" for c, value in changes.items())
        # A task of Spark's that was done twice has written its rows twice.
        connection.execute(
            f"INSERT INTO {target} AS old ({_listed(columns)}) "
            f"SELECT DISTINCT ON ({understood}) {', '.join(values.values())} "
            f"FROM {source} ORDER BY {understood} ON CONFLICT ({keys}) "
            + (f"DO UPDATE SET {changed}" if changed else "DO NOTHING")
        )

    def _values(self, connection: Any, schema: StructType) -> dict[str, str]:
        """Return the columns of a stage as the table takes them: text as what it means.

        Without a length, its own or its domain's, to which PostgreSQL would cut a text
        that it refuses when it is stored.
        """
        types = dict(
            connection.execute(
                "SELECT attname, "
                "format_type(coalesce(nullif(typbasetype, 0), atttypid), -1) "
                "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (self._quoted(self._name),),
            ).fetchall()
        )
        values = {name: _quoted(name) for name in schema.names}
        for name in _texts(schema) & values.keys():
            values[name] += f"::{types.get(name, 'text')}"
        return values

    def _refuse_one_key_in_two_spellings(
        self, connection: Any, source: str, keys: str
    ) -> None:
        """Fail where Spark saw two keys and the table sees one: a row would be lost."""
        found = connection.execute(
            f"SELECT min({AS_SENT}), max({AS_SENT}) FROM {source} "
            f"GROUP BY {keys} HAVING min({AS_SENT}) <> max({AS_SENT}) LIMIT 1"
        ).fetchone()
        if found:
            raise BadBatch(
                f"a batch has the keys {found[0]} and {found[1]}, which are one and the "
                f"same in {self.place}; write them alike in the node, e.g. by lower()"
            )

    # --- which batches are there already -------------------------------------

    def _is_done(self, connection: Any, stream: str, batch_id: int | None) -> bool:
        if batch_id is None or not self._exists(connection, DONE):
            return False
        done = connection.execute(
            f"SELECT batch_id FROM {self._quoted(DONE)} "
            "WHERE stream = %s AND target = %s",
            (stream, self._name),
        ).fetchone()
        return done is not None and done[0] >= batch_id

    def _note(self, connection: Any, stream: str, batch_id: int) -> bool:
        """Note a batch together with its rows: both are there afterwards, or neither.

        Say whether it is new: a driver that was taken for dead may have been faster.
        """
        done = self._quoted(DONE)
        if not self._exists(connection, DONE):
            self._await_turn(connection, done)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {done} (stream text, target text, "
                "batch_id bigint NOT NULL, PRIMARY KEY (stream, target))"
            )
        noted = connection.execute(
            f"INSERT INTO {done} AS old VALUES (%s, %s, %s) ON CONFLICT (stream, target) "
            "DO UPDATE SET batch_id = excluded.batch_id "
            "WHERE old.batch_id < excluded.batch_id",
            (stream, self._name, batch_id),
        )
        return noted.rowcount == 1

    # --- reading -------------------------------------------------------------

    def load(self) -> DataFrame:
        """Read the table as it is now."""
        return self._read(self._quoted(self._name))

    def _read(self, table: str, **options: Any) -> DataFrame:
        reader = get_spark(*self.formats).read.format("jdbc").options(**options)
        return reader.options(**{**self._options(self._name), "dbtable": table}).load()

    def exists(self) -> bool:
        """Whether there is such a table."""
        with self._connect() as connection:
            return self._exists(connection, self._name)

    # --- the server ----------------------------------------------------------

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """Open a transaction, which is committed at the end, or undone by an error."""
        with self._client.connect(
            self._url.removeprefix("jdbc:"),
            **{"connect_timeout": SECONDS, **NOTICED, **self._connection},
        ) as connection:
            yield connection

    def _await_turn(self, connection: Any, table: str) -> None:
        """Let one stream at a time make a table that two begin with."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))

    def _options(self, table: str) -> dict[str, Any]:
        """What Spark's own client needs."""
        return {
            "tcpKeepAlive": "true",
            "logServerErrorDetail": "false",  # which shows rows
            **self._connection,
            "url": self._url,
            "driver": "org.postgresql.Driver",
            "dbtable": self._quoted(table),
        }

    def _quoted(self, name: str) -> str:
        return ".".join(map(_quoted, [*self._schema, name]))

    def _exists(self, connection: Any, name: str) -> bool:
        found = connection.execute("SELECT to_regclass(%s)", (self._quoted(name),))
        return found.fetchone()[0] is not None

    def _has_schema(self, connection: Any) -> bool:
        if not self._schema:
            return True
        schema = ".".join(map(_quoted, self._schema))
        found = connection.execute("SELECT to_regnamespace(%s)", (schema,))
        return found.fetchone()[0] is not None

    def _columns(self, connection: Any) -> list[str] | None:
        if not self._exists(connection, self._name):
            return None
        query = f"SELECT * FROM {self._quoted(self._name)} LIMIT 0"
        return [column.name for column in connection.execute(query).description]

    def _tables(self, connection: Any, beginning: str) -> list[str]:
        """Find tables beside ours by how their names begin."""
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = to_regnamespace(coalesce(%s, "
            "quote_ident(current_schema()))) AND starts_with(relname::text, %s)",
            (".".join(map(_quoted, self._schema)) or None, beginning),
        )
        return [name for (name,) in found]

    def _needed(self, connection: Any, columns: list[str]) -> list[str]:
        """Find columns that every row must have, and that these rows have not."""
        found = connection.execute(
            "SELECT attname FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "AND attnotnull AND NOT atthasdef AND attidentity = '' "
            "AND typdefault IS NULL AND NOT EXISTS (SELECT 1 FROM pg_trigger "
            "WHERE tgrelid = attrelid AND tgtype & 7 = 7)",  # it may fill the column
            (self._quoted(self._name),),
        )
        return [name for (name,) in found if name not in columns]

    def _is_keyed(self, connection: Any) -> bool:
        indexes = connection.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid "
            "AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL "
            "GROUP BY i.indexrelid",
            (self._quoted(self._name),),
        )
        return any(set(names) == set(self._merge.keys) for (names,) in indexes)


def _client() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - only who writes there has it
    except ImportError as error:
        raise DatasetError(
            "file_format postgresql needs psycopg, which is not installed; type: "
            "pip install -e '.[postgres]'"
        ) from error
    return psycopg


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: list[str]) -> str:
    return ", ".join(map(_quoted, names))


def _server(url: str) -> tuple[str, ...]:
    """Return the hosts and the database of a url, with the port that is usual."""
    place = url.removeprefix("jdbc:postgresql://").partition("?")[0]
    hosts, _, database = place.partition("/")
    with_port = [
        host if ":" in host.rpartition("]")[2] else f"{host}:5432"
        for host in hosts.split(",")
    ]
    return (*with_port, database)


def _cut(name: str, longest: int) -> str:
    return name.encode()[:longest].decode(errors="ignore")


def _sql_state(error: Exception) -> str:
    """Return the code that a database gave an error, of which Spark keeps the cause."""
    for java in causes(error):
        if java.getClass().getName() in SQL_ERRORS:
            return java.getSQLState() or ""
    return ""


def _texts(schema: StructType) -> set[str]:
    """Return the columns of text, and the one that says what Spark took a key for."""
    return {AS_SENT, *[f.name for f in schema if isinstance(f.dataType, StringType)]}


def _is_kept(field: StructField, there: DataType) -> bool:
    """Whether a column keeps every value; PostgreSQL reads text as what it is to be.

    A moment in a column without a time zone would depend on that of the machine, as would
    the one at which a day begins; of a DOUBLE, a NUMERIC keeps fifteen digits.
    """
    if isinstance(field.dataType, StringType):
        return True
    kind = type(field.dataType)
    if {kind, type(there)} == {TimestampType, TimestampNTZType}:
        return False
    if kind is DateType and isinstance(there, TimestampType):
        return False
    if there == ANY_NUMBER:
        return issubclass(kind, IntegralType | DecimalType)
    return is_lossless(field.dataType, there)


def _is_ordered_otherwise(field: StructField, there: DataType) -> bool:
    """Whether the newest row here may not be the newest one in the table."""
    is_text = isinstance(field.dataType, StringType)
    return is_text and not isinstance(there, StringType)


def _is_nested(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StructType | MapType)
    return isinstance(kind, StructType | MapType)
