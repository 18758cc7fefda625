"""The project's own commands: ``kedro streams ...``."""

import json
import logging
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from kedro.framework.cli.project import run  # a packaged project looks for it here
from kedro.framework.cli.utils import validate_conf_source
from kedro.framework.context import KedroContext
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.pipeline import Pipeline

from .extras.streams import checks, local_kafka
from .extras.streams.cluster import refuse_unreachable
from .extras.streams.dry_run import dry_run
from .extras.streams.errors import TROUBLE
from .extras.streams.feed import send_samples
from .extras.streams.reset import plan_reset
from .extras.streams.session import look_from_here, project_path, settings_for
from .extras.streams.status import status as status_of
from .extras.streams.status import told
from .extras.streams.submit import jars_of, older_code, submit_command
from .extras.streams.topology import Topology

env_option = click.option("--env", "-e", help="Environment of conf/, as for kedro run.")


@click.group()
def cli() -> None:
    """Commands of this project."""


@cli.group()
def streams() -> None:
    """Check, watch and start over the streams of this project."""


@streams.command()
@env_option
@click.option("--pipelines", "-p", "names", help="Pipelines to check, with commas.")
def check(env: str | None, names: str | None) -> None:
    """Check every stream without starting it; exit 1 if one could not run."""
    with _context(env) as context:
        parameters = context.params.get("streams") or {}
        found = dry_run(_pipeline(names), context.catalog, parameters)
    for line in found.lines:
        click.echo(line)
    for line in found.warnings:
        click.secho(f"warning: {line}", fg="yellow")
    for line in found.problems:
        click.secho(f"problem: {line}", fg="red")
    if found.problems:
        raise SystemExit(1)


@streams.command()
@env_option
@click.option("--json", "as_json", is_flag=True, help="Print it for machines.")
def status(env: str | None, as_json: bool) -> None:
    """Say how far every stream came, whether it runs or not."""
    if as_json:
        logging.disable(logging.WARNING)  # what is logged would not be JSON
    with _topology(env) as topology:
        look_from_here()
        found = status_of(topology)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for stream in found:
        click.echo("\n".join(told(stream)))


@streams.command()
@click.argument("names", nargs=-1, required=True)
@env_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(names: tuple[str, ...], env: str | None, yes: bool) -> None:
    """Delete checkpoints, and output that is a stream's alone, to start over."""
    with _topology(env) as topology:
        look_from_here()
        plan = plan_reset(names, topology)
        for line in plan.lines():
            click.echo(line)
        if not plan.places:
            click.echo("There is nothing to delete.")
        elif yes or click.confirm("Delete it?"):
            plan.carry_out()
            click.echo("Deleted; the next run starts over.")
        else:
            click.echo("Nothing was deleted.")


@streams.command()
@click.option("--env", "-e", default="kafka", show_default=True)
@click.option("--port", type=int, help="[default: as the catalog says]")
def broker(env: str, port: int | None) -> None:
    """Run a Kafka on this machine, with the topics of the catalog, until Ctrl-C."""
    with _topology(env) as topology:
        checks.refuse(checks.wrong_entries(topology))
        address = local_kafka.address_of(topology, port)
        folder = project_path() / ".kafka"
        topics = local_kafka.topics_of(topology)
    local_kafka.run_broker(folder, address, topics, click.echo)


@streams.command()
@env_option
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Rows a second, a source.",
)
@click.option("--now", is_flag=True, help="Move times so that the newest is now.")
def feed(env: str | None, rate: int, now: bool) -> None:
    """Send the rows of the sample files to where the streams read."""
    with _topology(None) as samples, _topology(env) as targets:
        look_from_here()
        for line in send_samples(samples, targets, rate, now):
            click.echo(line)


class _TakesRunOptions(click.Command):
    """Leaves options that it does not know to ``kedro run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse ``-psensor``, in which click would find an ``-e`` of ours."""
        for word in args:
            if re.match(r"-\w{2}", word) and word not in ("-lv", "-ns"):
                raise click.BadOptionUsage(
                    word, f"write {word[:2]} {word[2:]} instead of {word}", ctx
                )
        return super().parse_args(ctx, args)


@streams.command(
    cls=_TakesRunOptions, context_settings={"ignore_unknown_options": True}
)
@env_option
@click.option("--master", help="Where to run.  [default: as spark.yml says]")
@click.option("--dry-run", is_flag=True, help="Print the command, do not run it.")
@click.option(
    "--conf-source",
    callback=validate_conf_source,
    help="Where conf/ is.  [default: in the project]",
)
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED)
def submit(
    env: str | None,
    master: str | None,
    dry_run: bool,
    conf_source: str | None,
    run_options: tuple[str, ...],
) -> None:
    """Run the streams on a cluster, by spark-submit; takes what kedro run takes."""
    given = run.make_context("run", list(run_options)).params
    env = env or given["env"] or os.environ.get("KEDRO_ENV")  # which may not travel
    conf_source = conf_source or given["conf_source"]
    # With the parameters, because the catalog may use them.
    with _topology(env, conf_source, given["params"]) as topology:
        _pipeline(",".join(filter(None, [given["pipeline"], *given["pipelines"]])))
        checks.refuse(checks.unbuilt(topology))
        if not dry_run:
            checks.refuse(checks.unsettled(topology))
        command = submit_command(
            topology.formats, env, master, run_options, conf_source
        )
    for line in older_code():
        click.secho(f"warning: {line}", fg="yellow", err=True)
    if dry_run:
        click.echo(shlex.join(command))
        return
    refuse_unreachable(command[command.index("--master") + 1], settings_for())
    if command[command.index("--deploy-mode") + 1] == "client":
        # As kedro run does: the project need not be installed where it is.
        paths = [str(project_path() / "src"), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execv(command[0], command)  # signals then reach Spark, which tells the run


@streams.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@env_option
def jars(folder: Path, env: str | None) -> None:
    """Download the jars that the catalog needs, for images and machines offline."""
    with _topology(env) as topology:
        checks.refuse(checks.unbuilt(topology))
        found = jars_of(topology.formats, folder)
    names = f", now in {folder}: {', '.join(found)}" if found else ""
    click.echo(f"{len(found)} jars are needed beside Spark's own{names}")


@contextmanager
def _context(
    env: str | None,
    conf_source: str | None = None,
    params: dict[str, Any] | None = None,
) -> Iterator[KedroContext]:
    with KedroSession.create(
        env=env, conf_source=conf_source, runtime_params=params
    ) as session:
        assert isinstance(session, KedroSession)
        yield session.load_context()


@contextmanager
def _topology(
    env: str | None,
    conf_source: str | None = None,
    params: dict[str, Any] | None = None,
) -> Iterator[Topology]:
    with _context(env, conf_source, params) as context:
        topology = Topology(_pipeline(",".join(pipelines)), context.catalog)
        try:
            yield topology
        except TROUBLE:
            checks.refuse(checks.silent_stores(topology))
            raise


def _pipeline(names: str | None) -> Pipeline:
    chosen = names.split(",") if names else ["__default__"]
    if unknown := sorted(set(chosen) - pipelines.keys()):
        raise click.BadParameter(
            f"there is no pipeline {unknown[0]}; there are {', '.join(pipelines)}"
        )
    return sum((pipelines[name] for name in chosen), Pipeline([]))
