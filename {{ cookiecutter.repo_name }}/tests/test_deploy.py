"""What is deployed is what was tested: one Spark everywhere."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def found(path: str, pattern: str) -> str:
    """Return what a file says at a place that must be there."""
    match = re.search(pattern, (PROJECT / path).read_text())
    assert match, f"{pattern} is not in {path}"
    return match[1]


def test_image_and_application_have_the_spark_that_pyproject_pins():
    """Delta's and Iceberg's packages in conf/base/spark.yml are made for one, too."""
    pinned = found("pyproject.toml", r"pyspark==([\d.]+)")

    assert found("deploy/Dockerfile", r"FROM \S*spark:([\d.]+)") == pinned
    assert found("deploy/spark-application.yaml", r"sparkVersion: ([\d.]+)") == pinned
