"""Start Spark when a run needs it; supervise the streams a run describes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol, DataCatalog, DatasetError
from kedro.pipeline import Pipeline
from omegaconf.errors import InterpolationResolutionError
from yaml import YAMLError

from .extras.datasets.batch_writers import remember_credentials
from .extras.streams import checks, session
from .extras.streams.errors import StreamsError, first_sentence, is_sparks
from .extras.streams.run import StreamsRun
from .extras.streams.topology import formats


class SparkHooks:
    """Hands ``spark.yml`` to the session, which starts when something needs it."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember the settings; no Java process starts here."""
        _refuse_unknown_environment(context)
        settings = _resolved(context, "spark")
        with suppress(MissingConfigException):  # Kedro says so, where it is needed
            _refuse_unknown_credentials(context, _resolved(context, "catalog"))
        secrets = _secrets(context, settings)
        session.configure(settings, context.project_path, secrets, context.env)

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Start Spark before a dataset starts it without all settings and packages."""
        datasets = [catalog.get(name) for name in pipeline.datasets()]
        modules = [type(dataset).__module__ for dataset in datasets]
        needed = formats(datasets)
        if needed or any(m.startswith("kedro_datasets.spark.") for m in modules):
            session.get_spark(*needed)


class SparkStreamsHook:
    """Makes a run of streams last: nodes describe them, this starts and watches them."""

    _run: StreamsRun | None = None  # absent from the processes of ParallelRunner

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Keep the context, whose parameters say how long to run."""
        self._context = context

    @hook_impl
    def after_catalog_created(
        self, catalog: DataCatalog, conf_creds: dict[str, Any]
    ) -> None:
        """Tell streams what they are called, before a notebook builds them."""
        remember_credentials(conf_creds)
        ours = f"{__package__}.extras.datasets."
        for name, entry in catalog.config_resolver.config.items():
            kind = str(entry.get("type", ""))
            if kind.startswith(ours) and not kind.endswith(".UpsertDataset"):
                entry.setdefault("name", name)

    @hook_impl(tryfirst=True)
    def before_pipeline_run(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Check what can be checked before any node runs, and hold the sinks back."""
        self._catalog, self._pipeline = catalog, pipeline
        run = StreamsRun(pipeline, catalog)
        self._run = run if run.has_streams else None
        if self._run:
            checks.refuse_wrong_runner(run_params, catalog)
            self._run.prepare(self._context.params.get("streams") or {})

    @hook_impl
    def before_node_run(self) -> None:
        """Hear Ctrl-C between two nodes."""
        if self._run:
            self._run.end_if_asked()

    @hook_impl
    def before_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Refuse a stream where a batch is expected, or where it would be lost."""
        checks.refuse_misdirected(dataset_name, data, self._pipeline, self._catalog)

    @hook_impl(trylast=True)
    def after_pipeline_run(self) -> None:
        """Start the streams, and stay until they end."""
        if self._run:
            self._run.supervise()

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Clean up; say in a sentence what a dataset or Spark refused."""
        if self._run:
            self._run.close()
            if isinstance(error, DatasetError):
                raise StreamsError(str(error)) from error
            if is_sparks(error):
                raise StreamsError(f"Spark refuses: {first_sentence(error)}") from error


def _refuse_unknown_environment(context: KedroContext) -> None:
    """Name the environments that there are, where Kedro would show a traceback."""
    conf = Path(str(context.config_loader.conf_source))
    if context.env and conf.is_dir() and not (conf / context.env).is_dir():
        there = ", ".join(
            sorted(folder.name for folder in conf.iterdir() if folder.is_dir())
        )
        raise StreamsError(
            f"there is no environment {context.env} in {conf}, where there are {there}; "
            "look at --env"
        )


def _resolved(context: KedroContext, kind: str) -> dict[str, Any]:
    """Return a part of the configuration, or say which of its values nobody gives."""
    try:
        return context.config_loader[kind]
    except InterpolationResolutionError as error:
        reason = str(error).split("\n")[0].removesuffix(".")
        raise StreamsError(
            f"{reason}; {kind}.yml asks for it at {error.full_key}: "
            f"{_where_to_give_it(reason)}"
        ) from error
    except (YAMLError, ValueError) as error:  # of which Kedro shows pages
        said = str(getattr(error, "problem", None) or error).split("\n")[0]
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise StreamsError(
            f"the configuration of {kind} (its own files and globals.yml{where}): {said}"
        ) from error


def _where_to_give_it(reason: str) -> str:
    """Say who gives a value to ``${...}``, by what OmegaConf says of it."""
    if reason.startswith("Globals key"):
        return "write it into globals.yml of the environment"
    if reason.startswith("Runtime parameter"):
        return (
            "write a default behind a comma, ${runtime_params:x, y}, or give it with "
            "--params to kedro run and kedro streams submit"
        )
    return (
        "correct it there; ${globals:x} is a value of globals.yml, ${runtime_params:x} one "
        "of --params, and environment variables are for credentials.yml alone"
    )


def _refuse_unknown_credentials(context: KedroContext, catalog: dict[str, Any]) -> None:
    """Name the entry whose credentials nobody has, where Kedro shows a traceback."""
    named = {name: list(_credentials_in(entry)) for name, entry in catalog.items()}
    known = _credentials(context) if any(named.values()) else {}
    for name, wanted in named.items():
        for one in wanted:
            if one not in known:
                raise StreamsError(
                    f"{name}: credentials '{one}' are not known; add {one}: to "
                    f"conf/{context.env or 'local'}/credentials.yml"
                )


def _credentials_in(entry: Any) -> Iterator[str]:
    """Find the names for which Kedro puts credentials into an entry."""
    for key, value in entry.items() if isinstance(entry, dict) else ():
        if key == "credentials" and isinstance(value, str) and "{" not in value:
            yield value
        yield from _credentials_in(value)


def _credentials(context: KedroContext) -> dict[str, Any]:
    try:
        return context.config_loader["credentials"]
    except MissingConfigException:
        return {}
    except InterpolationResolutionError as error:
        raise StreamsError(
            f"credentials.yml cannot be read: {error}; set that environment variable"
        ) from error


def _secrets(context: KedroContext, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the credentials that ``spark.yml`` names, if it names any."""
    name = settings.get(session.CREDENTIALS)
    if not name:
        return {}
    found = _credentials(context)
    if name not in found:
        raise StreamsError(
            f"spark.yml names the credentials '{name}', which are not there; add "
            f"{name}: to conf/{context.env or 'local'}/credentials.yml"
        )
    return found[name]
