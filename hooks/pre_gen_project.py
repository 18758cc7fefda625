"""Refuse names that could not be imported, or that would hide what the project imports."""

import keyword
import re
import sys
import unicodedata

PROJECT = """{{ cookiecutter.project_name }}""".strip()
PACKAGE = "{{ cookiecutter.python_package }}"
REPO = "{{ cookiecutter.repo_name }}"

# A project of one of these names comes first on the import path, so that its
# own code, Kedro or Spark would import the project instead of the package.
# The tests hold this list against what the dependencies install.
TAKEN = {
    *"antlr4 appdirs arrow attr attrs binaryornot certifi charset_normalizer".split(),
    *"click cookiecutter dateutil dynaconf fsspec git gitdb idna jinja2".split(),
    *"lazy_loader markdown_it markupsafe mdurl more_itertools omegaconf".split(),
    *"packaging parse pluggy pydevd_plugins pygments pyproject_hooks pytz".split(),
    *"requests rich slugify smmap text_unidecode tomli_w typing_extensions".split(),
    *"tzdata urllib3 vendor_licenses yaml".split(),
    *"kedro kedro_datasets kedro_datasets_benchmarks".split(),
    *"kedro_datasets_experimental kedro_telemetry kedro_viz".split(),
    *"kedro_spark_streaming numpy pandas py4j pyarrow pyspark".split(),
    *"delta google grpc ipython jupyter jupyterlab notebook".split(),
    *"build hatchling mypy pip pytest ruff setuptools uv".split(),
    *"conf data docs src test tests".split(),
    *keyword.kwlist,
    *sys.stdlib_module_names,
}


def refusal() -> str | None:
    """Say what is wrong with the name and which one would do, or nothing."""
    if PACKAGE in TAKEN:
        return (
            f"the project cannot be called '{PROJECT}', because its package "
            f"'{PACKAGE}' would hide the package of that name; "
            f'try --name="My {PROJECT.title()}"'
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", PACKAGE):
        return (
            f"the project cannot be called '{PROJECT}', because '{PACKAGE}' is no "
            "name for a package: it starts with a letter a-z, ends with a letter "
            f'or digit, and has nothing but those and _; try --name="{proposal()}"'
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", REPO):
        return (
            f"the folder cannot be called '{REPO}', because a repository's name has "
            f"only a-z, 0-9 and -; try repo_name: {PACKAGE.replace('_', '-')}"
        )
    return None


def proposal() -> str:
    """Return the nearest name that is accepted."""
    ascii_name = unicodedata.normalize("NFKD", PROJECT).encode("ascii", "ignore")
    words = re.findall(r"[A-Za-z0-9]+", ascii_name.decode())
    if not words or not words[0][0].isalpha() or len("".join(words)) < 2:
        words.insert(0, "Project")
    return " ".join(words)


if reason := refusal():
    sys.exit(reason)
