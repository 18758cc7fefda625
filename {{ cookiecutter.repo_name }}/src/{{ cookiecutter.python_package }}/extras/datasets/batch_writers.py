"""What can be done with a batch: datasets save it, a function or a row writer takes it."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from types import UnionType
from typing import Any, Union, get_args, get_origin

from kedro.io import AbstractDataset, DatasetError, MemoryDataset
from kedro.utils import load_obj
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from ..streams.errors import first_sentence, is_sparks
from ..streams.session import setting
from .arguments import absolute
from .stream_sink import StreamSink
from .upsert_dataset import UpsertDataset

BATCH_ID = "{batch_id}"
NEARLY = re.compile(r"\{\s*batch[\s_-]*id\s*\}", re.IGNORECASE)  # that, misspelt
PATHS = {"filepath", "filename", "path"}  # what Kedro makes absolute, but not in lists
# How Kedro says that a dataset lacks a library; its own advice comes in further lines.
UNMET = re.compile(r"(.*?)\. (?:Make sure the dataset name|Please install the missing)")
MODES = ("mode", "write_mode", "if_exists")  # what datasets call it
ELSEWHERE = ("load_args", "open_args_load", "metadata")  # have modes of their own
APPENDING = ("append", "a")
REPLACING = ("overwrite", "replace")
OF_A_FILE = re.compile("[awx][bt+]*")  # Python's own; only the letter matters here
SKIPPING = "ignore"  # what is there stays
REFUSING = ("error", "errorifexists", "default", "fail", "x")  # it is an error
ARROW_FILES = ("ParquetDataset", "FeatherDataset")  # which pandas cannot write alone
REFUSE_BY_DEFAULT = {  # and all of Spark's; with what makes them overwrite
    "SQLTableDataset": "if_exists: replace under its save_args",
    "GBQTableDataset": "if_exists: replace under its save_args",
    "SparkHiveDataset": "write_mode: overwrite",
}
DIVIDED = "partitionOverwriteMode"  # static, unless somebody says dynamic
OVERWRITE = "mode: overwrite under its save_args"
SPARKS_MODES = {"append", "overwrite", SKIPPING, "error", "errorifexists", "default"}


class _Known:
    credentials: dict[str, Any] = {}  # by name; the hooks tell


def remember_credentials(credentials: dict[str, Any]) -> None:
    """Keep credentials that a list names, where Kedro does not look for them.

    They stay out of the configuration of the catalog, which Kedro shows.
    """
    _Known.credentials = credentials


class DatasetWriter:
    """Saves batches with a Kedro dataset.

    Where ``{batch_id}`` is written in its configuration the number of the batch goes,
    so that a batch that comes again overwrites itself.
    """

    def __init__(self, config: Any) -> None:
        """Build the dataset, to see whether it can be built; it need not exist yet."""
        if not isinstance(config, dict) or "type" not in config:
            raise DatasetError(
                f"{_shown(config)} under datasets is no dataset; begin each with "
                "'- type: '"
            )
        paths = {key: absolute(config[key]) for key in config.keys() & PATHS}
        self._config = {**config, **paths}
        self._refuse_versions()
        self._refuse_misspelt_number()
        self._refuse_unknown_credentials(self._config)
        self.is_per_batch = BATCH_ID in str(config)
        self.dataset = self._built(0)
        self._refuse_what_stores_no_batch()
        self._refuse_second_write_that_fails()
        self._as_wanted = _converter(self.dataset)
        self._refuse_missing_arrow()

    @property
    def place(self) -> str:
        """Where rows go, for people to read."""
        where = [self._config.get(k) for k in ("filepath", "table", "table_name")]
        return " ".join([self._config["type"], *[w for w in where if w]])

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Save a batch, and say which dataset it was that could not."""
        dataset = self._built(batch_id) if self.is_per_batch else self.dataset
        try:
            if isinstance(dataset, UpsertDataset):
                dataset.save_batch(batch, batch_id)
            else:
                dataset.save(self._as_wanted(batch))
        except Exception as error:
            cause = error.__cause__ or error  # of which Kedro makes a DatasetError
            said = isinstance(cause, DatasetError) or is_sparks(cause)
            kind = "" if said else f"{type(cause).__name__}: "
            reason = f"{self.place}: {kind}{first_sentence(cause)}"
            raise DatasetError(reason) from cause

    def problems(self, schema: StructType) -> Iterator[str]:
        """Find what would fail with the first batch."""
        if isinstance(self.dataset, UpsertDataset):
            yield from self.dataset.problems(schema)

    @property
    def formats(self) -> set[str]:
        """The formats that Spark must know, some of which come in packages."""
        named = self._config.get("file_format") if self._is_sparks else None
        own = getattr(self.dataset, "formats", ())
        return {*own, *self.databases, *([str(named)] if named else [])}

    @property
    def databases(self) -> set[str]:
        """The databases that Spark reaches by a driver of theirs."""
        config = _with_credentials(self._config)
        secrets = config.get("credentials")
        hidden = secrets.get("url") if isinstance(secrets, dict) else None
        url = str(config.get("url") or hidden or "")  # jdbc:postgresql://...
        return {url.split(":")[1]} if url.startswith("jdbc:") else set()

    @property
    def paths(self) -> list[str]:
        """Every file or folder that Spark writes here; other datasets find their own."""
        if isinstance(self.dataset, UpsertDataset):
            return self.dataset.paths
        if not self._is_sparks:
            return []
        paths = [str(self._config[key]) for key in PATHS & self._config.keys()]
        return [path.partition(BATCH_ID)[0] for path in paths]

    @property
    def overwritten(self) -> str | None:
        """The file or folder that a batch deletes and writes anew, as far as we know.

        Tables and partitions keep what is theirs, and so may datasets of the user's own.
        """
        is_kedros = type(self.dataset).__module__.startswith("kedro_datasets.")
        is_delta = self._config.get("file_format") == "delta"
        is_delta |= type(self.dataset).__name__ == "DeltaTableDataset"
        keeps = is_delta or self._is_divided
        if not is_kedros or keeps or _mode(self._config) in APPENDING:
            return None
        return next(
            (str(self._config[key]) for key in PATHS & self._config.keys()), None
        )

    @property
    def _is_divided(self) -> bool:
        """Whether a batch replaces some partitions, and keeps the others."""
        options = self._config.get("save_args") or {}
        chosen = {key.lower(): value for key, value in options.items()}
        mode = chosen.get(DIVIDED.lower(), setting(f"spark.sql.sources.{DIVIDED}"))
        return "partitionby" in chosen and str(mode).lower() == "dynamic"

    @property
    def _is_sparks(self) -> bool:
        return type(self.dataset).__module__.startswith("kedro_datasets.spark.")

    @property
    def reads_again(self) -> bool:
        """Whether a batch is read more than once to be saved here."""
        return isinstance(self.dataset, UpsertDataset) and self.dataset.reads_again

    def load(self) -> Any:
        """Read what the dataset holds, as a batch."""
        if self.is_per_batch:
            raise DatasetError(
                f"{self.place} is another dataset with every batch, so there is no one "
                "to load; read them with an entry of its own, e.g. spark.SparkDatasetV2 "
                "on the folder"
            )
        return self.dataset.load()

    def exists(self) -> bool:
        """Whether there is something already."""
        return not self.is_per_batch and self.dataset.exists()

    def hazards(self, output_mode: str) -> Iterator[str]:
        """Find what a replay would double, and what the next batch would replace."""
        if isinstance(self.dataset, UpsertDataset):
            return
        mode = _mode(self._config)
        replaces = "filepath" in self._config or mode in REPLACING
        if mode in APPENDING:
            yield (
                f"{self.place} appends, so a batch that is replayed after a crash is "
                f"there twice; write {BATCH_ID} into its filepath, or the name of its "
                "table, and overwrite, or use a dataset that upserts"
            )
        elif (
            replaces
            and not (self.is_per_batch or self._is_divided)
            and output_mode != "complete"
        ):
            yield (
                f"{self.place} holds no more than the newest batch, because each one "
                f"replaces the one before; write {BATCH_ID} into its filepath, or the "
                "name of its table, to keep them all"
            )

    def describe(self) -> dict[str, Any]:
        """Return what may be shown."""
        return self.dataset._describe()

    def _built(self, batch_id: int) -> AbstractDataset:
        config = _filled(_with_credentials(self._config), str(batch_id))
        try:
            return AbstractDataset.from_config(str(config["type"]), config)
        except DatasetError as error:
            reason = first_sentence(error.__cause__ or error)
            kind = str(config["type"]).removeprefix("kedro_datasets.")
            is_kedros = find_spec(f"kedro_datasets.{kind.partition('.')[0]}")
            if (missing := UNMET.search(reason)) and is_kedros:
                extra = kind.lower().replace(".", "-").replace("_", "-")
                reason = (
                    f"{missing[1]}; correct the name, or, if it is right, type: pip "
                    f"install 'kedro-datasets[{extra}]'"
                )
            raise DatasetError(
                f"{config['type']} under datasets cannot be built: {reason}"
            ) from error

    def _refuse_versions(self) -> None:
        if self._config.get("versioned"):
            raise DatasetError(
                f"{self.place} is versioned, and a batch that is replayed would become "
                f"a second version; remove versioned and write {BATCH_ID} into its "
                "filepath"
            )

    def _refuse_misspelt_number(self) -> None:
        found = {*NEARLY.findall(str(self._config))} - {BATCH_ID}
        if found:
            raise DatasetError(
                f"{found.pop()} stays as it is, in {self.place}; the number of the batch "
                f"goes where {BATCH_ID} is written"
            )

    def _refuse_unknown_credentials(self, config: dict[str, Any]) -> None:
        name = config.get("credentials")
        if isinstance(name, str) and name not in _Known.credentials:
            raise DatasetError(
                f"credentials '{name}' of {self.place} are not known; add {name}: to "
                "credentials.yml of the environment, e.g. conf/local/credentials.yml"
            )
        for value in config.values():
            if isinstance(value, dict):
                self._refuse_unknown_credentials(value)

    def _refuse_missing_arrow(self) -> None:
        by_arrow = self._as_wanted in (_to_arrow, _to_polars)
        is_wanted = by_arrow or type(self.dataset).__name__ in ARROW_FILES
        if is_wanted and find_spec("pyarrow") is None:
            raise DatasetError(
                f"{self.place} needs pyarrow, which is not installed; type: pip install "
                "-e '.[arrow]'"
            )

    def _refuse_what_stores_no_batch(self) -> None:
        kind = type(self.dataset)
        if issubclass(kind, MemoryDataset):
            raise DatasetError(
                "MemoryDataset under datasets would keep the newest batch until the run "
                "ends, and nobody could read it; choose a dataset that stores it"
            )
        if issubclass(kind, StreamSink) or kind.__name__ == "SparkStreamingDataset":
            raise DatasetError(
                f"{self._config['type']} under datasets is a dataset for streams, and a "
                "batch ends; make it an entry of its own, or use a batch dataset, e.g. "
                "spark.SparkDatasetV2"
            )

    def _refuse_second_write_that_fails(self) -> None:
        mode = _mode(self._config)
        name = type(self.dataset).__name__
        knows_all = self._is_sparks and name != "SparkHiveDataset"
        if knows_all and mode and mode not in SPARKS_MODES:
            raise DatasetError(
                f"{self.place} has mode: {mode}, which Spark does not know; write "
                f"{OVERWRITE}, or append"
            )
        if mode == SKIPPING:
            raise DatasetError(
                f"{self.place} has mode: {mode}, which writes nothing where something "
                "is, so that all batches after the first would be lost; write mode: "
                "overwrite, or append"
            )
        if mode in REFUSING or (
            mode is None and (self._is_sparks or name in REFUSE_BY_DEFAULT)
        ):
            advice = REFUSE_BY_DEFAULT.get(name, OVERWRITE)
            key = advice.partition(":")[0]
            said = f"{key}: {mode}" if mode else f"no {key}"
            raise DatasetError(
                f"{self.place} has {said}, and then refuses to write where something "
                f"is, so that the second batch or a replay would fail; write {advice}"
            )


class FunctionWriter:
    """Gives batches to a function of the user's: ``f(batch, batch_id)``."""

    def __init__(self, path: str, arguments: dict[str, Any]) -> None:
        """Find the function, and whether it takes what it will be given."""
        self.place = path
        self._arguments = arguments
        self._function = _imported(path, "function", "f(batch, batch_id)")
        _refuse_wrong_arguments(self._function, path, (None, None), arguments)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Call the function."""
        self._function(batch, batch_id, **self._arguments)


class RowWriter:
    """Gives rows, one by one and where they are, to a class of the user's.

    Every partition of every batch gets an object of its own: ``open(partition_id,
    batch_id)``, which may return False to leave the partition out, ``process(row)``
    for each row, and at the end ``close(error)``. Only ``process`` must be there.
    """

    def __init__(self, path: str, arguments: dict[str, Any]) -> None:
        """Find the class, and whether it takes what it will be given."""
        self.place = path
        self._make = partial(_imported(path, "foreach", "class"), **arguments)
        if not hasattr(self._make.func, "process"):
            raise DatasetError(
                f"foreach '{path}' has no method process(row), which is given the rows; "
                "add it, or write function: for a function of whole batches"
            )
        _refuse_wrong_arguments(self._make.func, path, (), arguments)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write every partition, on the machine that holds it."""
        batch.foreachPartition(partial(_write_rows, self._make, batch_id))


Writer = DatasetWriter | FunctionWriter | RowWriter


def _write_rows(make: Callable[[], Any], batch_id: int, rows: Iterator[Row]) -> None:
    """Lead a row writer through a partition; runs on executors."""
    context = TaskContext.get()
    assert context is not None
    writer, error = make(), None
    try:
        is_wanted = True
        if hasattr(writer, "open"):
            is_wanted = writer.open(context.partitionId(), batch_id) is not False
        for row in rows if is_wanted else ():
            writer.process(row)
    except Exception as raised:
        error = raised
        raise
    finally:
        if hasattr(writer, "close"):
            writer.close(error)


def _imported(path: Any, key: str, what: str) -> Any:
    try:
        return load_obj(path)
    except Exception as error:
        raise DatasetError(
            f"{key} {path!r} cannot be imported ({error}); write the dotted path of a "
            f"{what}, e.g. {__name__.partition('.')[0]}.pipelines.stock.nodes.write"
        ) from error


def _refuse_wrong_arguments(
    called: Callable, path: str, given: tuple, arguments: dict[str, Any]
) -> None:
    try:
        inspect.signature(called).bind(*given, **arguments)
    except TypeError as error:
        batch = "a batch, its number and " if given else ""
        raise DatasetError(
            f"{path} cannot be called with {batch}the keys under arguments "
            f"({', '.join(arguments) or 'none'}): {error}"
        ) from error


def _filled(config: Any, batch_id: str) -> Any:
    """Write the number of the batch wherever the configuration asks for it."""
    if isinstance(config, dict):
        return {key: _filled(value, batch_id) for key, value in config.items()}
    if isinstance(config, list):
        return [_filled(value, batch_id) for value in config]
    return config.replace(BATCH_ID, batch_id) if isinstance(config, str) else config


def _shown(config: Any) -> str:
    """Say what somebody wrote, without what may be secret in it."""
    if isinstance(config, dict):
        return f"a mapping of {', '.join(map(str, config))}"
    return repr(config) if isinstance(config, str) else f"a {type(config).__name__}"


def _with_credentials(config: dict[str, Any]) -> dict[str, Any]:
    """Write credentials where the configuration has their name."""
    filled = {
        key: _with_credentials(value) if isinstance(value, dict) else value
        for key, value in config.items()
    }
    if isinstance(name := config.get("credentials"), str):
        filled["credentials"] = _Known.credentials.get(name, name)
    return filled


def _mode(config: dict[str, Any]) -> str | None:
    """Return what the configuration says about what is there already."""
    for key, value in config.items():
        if key in MODES:
            mode = str(value).lower()
            return mode[0] if OF_A_FILE.fullmatch(mode) else mode
        if key in ELSEWHERE or not isinstance(value, dict):
            continue
        if found := _mode(value):
            return found
    return None


def _converter(dataset: AbstractDataset) -> Callable[[DataFrame], Any]:
    """Choose the frame that the dataset's ``save`` says it takes; Spark's if none."""
    wanted = _wanted_types(dataset)
    roots = [getattr(kind, "__module__", "").partition(".")[0] for kind in wanted]
    if not wanted or "pyspark" in roots:
        return _unchanged
    for root in roots:
        if root in CONVERTERS:
            return CONVERTERS[root]
    is_kedros = type(dataset).__module__.startswith("kedro_datasets.")
    if "typing" in roots and not is_kedros:  # anything, says somebody who knows
        return _unchanged
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in wanted)
    names = names.replace("Any", "plain object of Python's")
    raise DatasetError(
        f"{type(dataset).__name__} under datasets saves a {names}, and a batch can be a "
        "frame of Spark, pandas, Arrow or polars; choose a dataset that saves one of "
        "these, or write function: and save it there"
    )


def _wanted_types(dataset: AbstractDataset) -> tuple[Any, ...]:
    """Return the types that ``save`` names for its data, if they can be known."""
    try:
        parameters = inspect.signature(type(dataset).save, eval_str=True).parameters
    except NameError:  # a type that is imported for type checkers only
        return ()
    hint = [p.annotation for p in parameters.values() if p.name != "self"][0]
    if hint is inspect.Parameter.empty:
        return ()
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(get_origin(kind) or kind for kind in kinds)


def _unchanged(batch: DataFrame) -> DataFrame:
    return batch


def _to_pandas(batch: DataFrame) -> Any:
    return batch.toPandas()


def _to_arrow(batch: DataFrame) -> Any:
    return batch.toArrow()


def _to_polars(batch: DataFrame) -> Any:
    import polars  # noqa: PLC0415 - only who saves with polars has it

    return polars.from_arrow(batch.toArrow())


CONVERTERS = {"pandas": _to_pandas, "polars": _to_polars, "pyarrow": _to_arrow}
