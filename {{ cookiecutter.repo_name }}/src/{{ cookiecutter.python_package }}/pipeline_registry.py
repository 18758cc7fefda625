"""The project's pipelines, by name."""

import warnings

from kedro.framework.project import find_pipelines
from kedro.pipeline import Pipeline

# Kedro warns of dots in names, because it uses them for namespaces, which this
# project does not have.
warnings.filterwarnings("ignore", message="One or more dataset names contain '.'")


def register_pipelines() -> dict[str, Pipeline]:
    """Register each folder of ``pipelines``, and all of them as the default."""
    pipelines = find_pipelines(raise_errors=True)
    pipelines["__default__"] = sum(pipelines.values(), Pipeline([]))
    return pipelines
