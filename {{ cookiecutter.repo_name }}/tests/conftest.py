"""What the tests share: one Spark session, and a copy of the project to run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from pyspark.sql import DataFrame

from {{ cookiecutter.python_package }}.extras.streams import (
    session,
)

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A small session; datasets and runs use it because it is there already."""
    settings = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": False,
        "spark.driver.bindAddress": "127.0.0.1",
    }
    session.configure(settings, tmp_path_factory.mktemp("spark"))
    yield session.get_spark()
    session.stop_spark()


@pytest.fixture
def rows():
    """Turn a frame into a sorted list of dictionaries, to compare it with."""

    def as_dictionaries(frame: DataFrame) -> list[dict]:
        return sorted((row.asDict() for row in frame.collect()), key=str)

    return as_dictionaries


class ProjectCopy:
    """The project in a folder of its own, with the samples and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("conf", "src", "data/01_raw"):
            shutil.copytree(PROJECT / part, folder / part)
        shutil.copy(PROJECT / "pyproject.toml", folder)

    def run_until_caught_up(self) -> None:
        """Run all streams over what is there, in this process and its session."""
        bootstrap_project(self.folder)
        settings = {"streams": {"until": "caught_up"}}
        with KedroSession.create(self.folder, runtime_params=settings) as kedro:
            kedro.run()

    def kedro(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run a command of Kedro's to its end."""
        return subprocess.run(
            [sys.executable, "-m", "kedro", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def lines(self, *patterns: str) -> list[str]:
        """Return the rows of CSV files, without their headings, sorted."""
        files = [f for pattern in patterns for f in self.folder.glob(pattern)]
        return sorted(line for f in files for line in f.read_text().splitlines()[1:])


@pytest.fixture
def project(tmp_path):
    """A fresh copy of this project."""
    return ProjectCopy(tmp_path / "project")
