"""The generated project, as it lies there: complete, rendered, clean."""

import os
import re
from pathlib import Path

import pytest
from conftest import BIN, NAMES, ROOT, new_environment, new_project, ok

FILES = """
.github/workflows/ci.yml
.gitignore
README.md
compose.yml
conf/base/catalog.yml
conf/base/parameters.yml
conf/base/spark.yml
conf/cluster/catalog.yml
conf/cluster/globals.yml
conf/cluster/spark.yml
conf/kafka/catalog.yml
conf/kafka/globals.yml
conf/local/.gitkeep
conf/logging.yml
conf/s3/catalog.yml
conf/s3/globals.yml
conf/s3/spark.yml
data/01_raw/products/products.csv
data/01_raw/stream/inventory/deliveries_01.json
data/01_raw/stream/inventory/deliveries_02.json
data/01_raw/stream/inventory/deliveries_03.json
data/01_raw/stream/sensor/readings_01.csv
data/01_raw/stream/sensor/readings_02.csv
data/01_raw/stream/sensor/readings_03.csv
data/01_raw/stream/sensor/readings_04.csv
deploy/Dockerfile
deploy/Dockerfile.dockerignore
deploy/driver-pod.yaml
deploy/run.py
deploy/spark-application.yaml
docs/cookbook.md
docs/databricks.md
docs/dataproc.md
docs/deploy.md
docs/emr_serverless.md
docs/grafana_dashboard.json
docs/prometheus_alerts.yml
docs/table.svg
pyproject.toml
src/PACKAGE/__init__.py
src/PACKAGE/__main__.py
src/PACKAGE/cli.py
src/PACKAGE/extras/__init__.py
src/PACKAGE/extras/datasets/__init__.py
src/PACKAGE/extras/datasets/arguments.py
src/PACKAGE/extras/datasets/avro.py
src/PACKAGE/extras/datasets/batch_writers.py
src/PACKAGE/extras/datasets/kafka.py
src/PACKAGE/extras/datasets/lake_tables.py
src/PACKAGE/extras/datasets/malformed.py
src/PACKAGE/extras/datasets/merges.py
src/PACKAGE/extras/datasets/micro_batch_dataset.py
src/PACKAGE/extras/datasets/payload.py
src/PACKAGE/extras/datasets/postgres.py
src/PACKAGE/extras/datasets/registry.py
src/PACKAGE/extras/datasets/schemas.py
src/PACKAGE/extras/datasets/spark_streaming_dataset.py
src/PACKAGE/extras/datasets/stream_sink.py
src/PACKAGE/extras/datasets/upsert_dataset.py
src/PACKAGE/extras/streams/__init__.py
src/PACKAGE/extras/streams/checkpoints.py
src/PACKAGE/extras/streams/checks.py
src/PACKAGE/extras/streams/cluster.py
src/PACKAGE/extras/streams/dry_run.py
src/PACKAGE/extras/streams/errors.py
src/PACKAGE/extras/streams/feed.py
src/PACKAGE/extras/streams/files.py
src/PACKAGE/extras/streams/installed.py
src/PACKAGE/extras/streams/jars.py
src/PACKAGE/extras/streams/local_kafka.py
src/PACKAGE/extras/streams/locks.py
src/PACKAGE/extras/streams/log4j2.properties
src/PACKAGE/extras/streams/plans.py
src/PACKAGE/extras/streams/progress.py
src/PACKAGE/extras/streams/reports.py
src/PACKAGE/extras/streams/reset.py
src/PACKAGE/extras/streams/run.py
src/PACKAGE/extras/streams/session.py
src/PACKAGE/extras/streams/settings.py
src/PACKAGE/extras/streams/signals.py
src/PACKAGE/extras/streams/status.py
src/PACKAGE/extras/streams/stream.py
src/PACKAGE/extras/streams/submit.py
src/PACKAGE/extras/streams/supervisor.py
src/PACKAGE/extras/streams/topology.py
src/PACKAGE/extras/streams/warnings.py
src/PACKAGE/extras/streams/workers.py
src/PACKAGE/hooks.py
src/PACKAGE/pipeline_registry.py
src/PACKAGE/pipelines/__init__.py
src/PACKAGE/pipelines/inventory/__init__.py
src/PACKAGE/pipelines/inventory/nodes.py
src/PACKAGE/pipelines/inventory/pipeline.py
src/PACKAGE/pipelines/malformed/__init__.py
src/PACKAGE/pipelines/malformed/nodes.py
src/PACKAGE/pipelines/malformed/pipeline.py
src/PACKAGE/pipelines/sensor/__init__.py
src/PACKAGE/pipelines/sensor/nodes.py
src/PACKAGE/pipelines/sensor/pipeline.py
src/PACKAGE/settings.py
tests/conftest.py
tests/test_datasets.py
tests/test_deploy.py
tests/test_inventory.py
tests/test_run.py
tests/test_sensor.py
"""


# By the user, or by a run.
WRITTEN = re.compile(r"conf/local/|conf/\w+/credentials.yml|dist/|logs/")


def files_of(project) -> list[str]:
    return sorted(
        str(path.relative_to(project.folder))
        for path in project.folder.rglob("*")
        if path.is_file() and "_cache" not in str(path)
    )


def test_it_has_exactly_these_files(generated):
    assert files_of(generated) == FILES.replace("PACKAGE", generated.package).split()


def test_nothing_is_left_unrendered(generated):
    for name in files_of(generated):
        text = (generated.folder / name).read_text()
        text = text.replace("{{stream}}", "").replace("{{ $labels.stream }}", "")
        assert not re.search(r"\{\{|\{%|cookiecutter", text), name


def test_no_file_ends_in_blank_or_unfinished_lines(generated):
    for name in files_of(generated):
        text = (generated.folder / name).read_text()
        assert not text or (text.endswith("\n") and not text.endswith("\n\n")), name


@pytest.mark.parametrize(
    "command", ["ruff check .", "ruff format --check .", "mypy --no-incremental"]
)
def test_it_is_clean(generated, command):
    tool, *arguments = command.split()

    ok(BIN / tool, *arguments, cwd=generated.folder)


def test_the_samples_are_as_old_as_their_numbers_say(generated):
    for folder in ("inventory", "sensor"):
        files = sorted((generated.folder / "data/01_raw/stream" / folder).iterdir())
        ages = [os.stat(file).st_mtime for file in files]
        assert ages == sorted(set(ages))


def test_git_keeps_the_samples_and_ignores_what_streams_write(generated, tmp_path):
    ok("git", "init", "-q", tmp_path)
    ok(
        "cp",
        "-r",
        *generated.folder.glob("*"),
        generated.folder / ".gitignore",
        tmp_path,
    )
    for written in (
        "data/03_primary/stock.csv",
        "logs/spark.log",
        "conf/local/me.yml",
        "conf/kafka/credentials.yml",
        ".kafka/data/meta.properties",
    ):
        (tmp_path / written).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / written).touch()

    seen = ok("git", "status", "--porcelain", "-uall", cwd=tmp_path)

    assert "data/01_raw/stream/sensor/readings_01.csv" in seen
    assert "conf/local/.gitkeep" in seen
    assert not re.search(r"03_primary|spark\.log|me\.yml|credentials|\.kafka", seen)


@pytest.mark.parametrize("where", ["the starter's README", "the project's README"])
def test_every_path_a_readme_names_exists(generated, where):
    """In the project, or, for what streams write, in its catalog."""
    is_starter = where.startswith("the starter")
    readme = (ROOT if is_starter else generated.folder) / "README.md"
    catalog = (generated.folder / "conf/base/catalog.yml").read_text()
    named = set(
        re.findall(
            r"`((?:[\w.{}<>-]+/)+[\w.<>-]*|[\w-]+\.(?:md|yml|toml|py|log))`",
            readme.read_text(),
        )
    )
    assert named
    for path in named:
        path = path.replace("<package>", generated.package)
        places = (ROOT, generated.folder, generated.folder / "src")
        exists = any((place / path).exists() for place in places)
        written = path.rstrip("/") in catalog or WRITTEN.match(path)
        is_dataset = re.search(rf"^{re.escape(path)}:", catalog, re.MULTILINE)
        assert exists or written or is_dataset, f"{readme} names {path}"


@pytest.mark.parametrize("generated", NAMES[:1], indirect=True, ids=["short"])
def test_its_own_tests_pass_in_a_clean_environment(generated, tmp_path):
    project = generated.copy(tmp_path)
    project.python = new_environment(tmp_path / "venv", "-e", f"{project.folder}[dev]")

    output = ok(project.python, "-m", "pytest", "-q", cwd=project.folder)

    assert " passed" in output and "skipped" not in output


def test_its_own_tests_pass_under_a_long_name(tmp_path):
    project = new_project(tmp_path, NAMES[1])

    output = ok(project.python, "-m", "pytest", "-q", cwd=project.folder)

    assert " passed" in output and "skipped" not in output


def commands_of(readme: Path) -> set[str]:
    """What a README tells its reader to type, without the comments beside it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", readme.read_text(), re.M | re.S)
    lines = [
        line.partition("#")[0].strip()
        for language, block in blocks
        for line in block.splitlines()
        if not language
    ]
    return {line for line in lines if re.match("(cat|cd|kedro|make|pip|rm) ", line)}


KAFKA = {
    'pip install -e ".[kafka]"': "test_kafka_runs.py: a broker of one's own",
    "kedro streams broker": "test_kafka_runs.py: a broker of one's own",
    "kedro run --env=kafka": "test_kafka_runs.py: the environment",
    "kedro streams feed --env=kafka": "test_kafka_runs.py: the environment",
}


def test_every_command_of_its_readme_is_one_that_the_tests_run(pristine):
    commands = commands_of(pristine.folder / "README.md")
    tested = {
        "pip install -e .": "test_runs.py: the demo",
        "kedro run": "test_runs.py: live",
        "kedro run --params=streams.until=caught_up": "test_runs.py: bounded",
        "kedro run --pipelines=sensor": "test_runs.py: ctrl_c",
        "kedro run --tags=inventory": "test_runs.py: parts",
        "kedro run --from-nodes=count_units_on_shelf": "test_runs.py: begin at a node",
        "kedro run --runner=ThreadRunner": "test_runs.py: parts",
        "cat data/03_primary/stock.csv": "test_runs.py: sigterm",
        'pip install -e ".[dev]" && pytest': "here, in a clean environment",
        "kedro ipython": "test_runs.py: notebook",
        "kedro package": "test_runs.py: packaged",
        'pip install -e ".[viz]" && kedro viz': "test_runs.py: viz",
        **KAFKA,
        "kedro streams feed --env=s3": "test_s3.py: feed",
        "kedro run --env=s3": "test_s3.py: a bucket",
        "kedro streams status": "test_supervision.py: seeing",
        "kedro streams reset processed.sensor": "test_supervision.py: starting over",
    }
    assert commands == tested.keys()


def test_every_command_of_the_starters_readme_is_one_that_the_tests_run():
    tested = {
        "make demo": "test_runs.py: the demo",
        "make test": "this",
        "pip install .": "test_starter.py: wheels",
        'kedro new --starter=spark-streaming --name="Cold Store"': "test_starter.py",
        "cd cold-store && pip install -e . && kedro run": "test_runs.py: the demo, live",
        **KAFKA,
        "kedro streams submit --env=cluster --dry-run": "test_cluster.py: packaged",
        "kedro streams submit --env=cluster": "test_cluster.py: driver",
    }
    assert commands_of(ROOT / "README.md") == tested.keys()
