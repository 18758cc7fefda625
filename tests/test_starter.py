"""The alias and ``kedro new``: wherever it is installed from, whatever the name."""

import re
import subprocess
import tarfile
import zipfile
from contextlib import suppress
from importlib import metadata

import pexpect
import pytest
from conftest import BIN, ROOT, Project, new_environment, ok, sh
from packaging.requirements import Requirement

KEDRO = BIN / "kedro"
TEMPLATE = "{{ cookiecutter.repo_name }}"


def template_files() -> set[str]:
    """What git tracks of the template: exactly this belongs into a wheel."""
    listed = ok("git", "ls-files", "-z", TEMPLATE, "hooks", cwd=ROOT).split("\0")
    return {name for name in listed if name} | {"cookiecutter.json", "prompts.yml"}


def packaged_files(wheel) -> set[str]:
    prefix = "kedro_spark_streaming/template/"
    names = zipfile.ZipFile(wheel).namelist()
    return {n.removeprefix(prefix) for n in names if n.startswith(prefix)}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel out of the checkout, and one out of the sdist, as strangers build it."""
    out = tmp_path_factory.mktemp("dist")
    checkout = out / "checkout"
    ok("git", "clone", "-q", ROOT, checkout)
    for name in ok(
        "git", "ls-files", "-mo", "--exclude-standard", "-z", cwd=ROOT
    ).split("\0"):
        if name and (ROOT / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((ROOT / name).read_bytes())
    ok("uv", "build", "-q", "--wheel", checkout, "-o", out / "direct")
    ok("uv", "build", "-q", "--sdist", checkout, "-o", out / "sdist")
    unpacked = out / "unpacked"
    tarfile.open(next((out / "sdist").glob("*.tar.gz"))).extractall(
        unpacked, filter="data"
    )
    source = next(unpacked.iterdir())
    ok("uv", "build", "-q", "--wheel", source, "-o", out / "indirect")
    return {kind: next((out / kind).glob("*.whl")) for kind in ("direct", "indirect")}


@pytest.mark.parametrize("kind", ["direct", "indirect"])
def test_a_wheel_carries_the_whole_template_dot_files_included(wheels, kind):
    files = packaged_files(wheels[kind])

    assert f"{TEMPLATE}/.gitignore" in files
    assert files == template_files()


@pytest.mark.parametrize("kind", ["direct", "indirect"])
def test_the_alias_works_from_a_wheel_without_git_and_network(wheels, kind, tmp_path):
    python = new_environment(tmp_path / "venv", wheels[kind])
    nowhere = "http://127.0.0.1:9"
    alone = {
        "PATH": str(python.parent),  # no git here
        "HTTPS_PROXY": nowhere,
        "HTTP_PROXY": nowhere,
        "KEDRO_DISABLE_TELEMETRY": "1",
    }

    ok(
        python.parent / "kedro",
        *("new", "--starter=spark-streaming", "--name=Cold Store"),
        cwd=tmp_path,
        env=alone,
    )

    assert (tmp_path / "cold-store/src/cold_store/hooks.py").is_file()


def test_the_alias_is_listed():
    listing = ok(KEDRO, "starter", "list")

    assert "Starters from kedro_spark_streaming" in listing
    assert "spark-streaming" in listing


def test_the_path_of_the_checkout_works_as_a_starter_too(tmp_path):
    ok(KEDRO, "new", f"--starter={ROOT}", "--name=Cold Store", cwd=tmp_path)

    assert (tmp_path / "cold-store/conf/base/catalog.yml").is_file()


def test_a_config_file_answers_the_prompt(tmp_path):
    (tmp_path / "answers.yml").write_text(
        "project_name: Cold Store\nrepo_name: chilled\npython_package: chilled\n"
    )

    ok(
        *(KEDRO, "new", "--starter=spark-streaming", "--config=answers.yml"),
        cwd=tmp_path,
    )

    assert (tmp_path / "chilled/src/chilled/hooks.py").is_file()


def test_the_prompt_asks_for_the_name_and_for_nothing_else(tmp_path):
    child = pexpect.spawn(
        str(KEDRO), ["new", "--starter=spark-streaming"], cwd=tmp_path, timeout=60
    )

    child.expect("What is your project called")
    child.sendline("Cold Store")
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 0
    assert (tmp_path / "cold-store/pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("name", "reason", "proposal"),
    [
        ("pyspark", "'pyspark' would hide the package", 'My Pyspark"'),
        ("kedro", "'kedro' would hide the package", 'My Kedro"'),
        ("py4j", "'py4j' would hide the package", 'My Py4J"'),
        ("Kedro Datasets", "'kedro_datasets' would hide", 'My Kedro Datasets"'),
        ("tests", "'tests' would hide the package", 'My Tests"'),
        ("3 sensors", "'3_sensors' is no name for a package", 'Project 3 sensors"'),
        ("Kühlhaus", "'kühlhaus' is no name for a package", 'Kuhlhaus"'),
        ("store-", "'store_' is no name for a package", 'store"'),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused(tmp_path, name, reason, proposal):
    result = sh(
        KEDRO, "new", "--starter=spark-streaming", f"--name={name}", cwd=tmp_path
    )

    assert result.returncode == 1
    assert reason in result.stderr
    assert f'try --name="{proposal}' in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_package_that_the_project_imports_can_be_hidden():
    """Whatever the dependencies install is on the list of refused names."""
    hook = (ROOT / "hooks/pre_gen_project.py").read_text()
    dependencies, waiting = set(), ["click", "kedro", "kedro-datasets", "pyspark"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in dependencies:
            dependencies.add(name)
            with suppress(metadata.PackageNotFoundError):
                needed = [Requirement(r) for r in metadata.requires(name) or []]
                waiting += [
                    r.name
                    for r in needed
                    if not r.marker or r.marker.evaluate({"extra": ""})
                ]
    installed = {
        module.lower()
        for module, owners in metadata.packages_distributions().items()
        if any(owner.lower().replace("_", "-") in dependencies for owner in owners)
    }

    possible = {name for name in installed if re.fullmatch("[a-z][a-z0-9_]+", name)}

    assert {"pyspark", "requests", "yaml"} <= possible
    assert [n for n in sorted(possible) if not re.search(rf"\b{n}\b", hook)] == []


def test_what_a_refusal_proposes_is_accepted(tmp_path):
    ok(*(KEDRO, "new", "--starter=spark-streaming", "--name=My Pyspark"), cwd=tmp_path)

    assert Project(tmp_path / "my-pyspark").package == "my_pyspark"


def test_kedro_shows_its_errors(tmp_path):
    """With click 8.5.1 Kedro 1.7 prints ``NoneType: None`` instead."""
    result = subprocess.run(
        [KEDRO, "new", "--starter=spark-streaming", "--tools=lint"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 1
    assert "Cannot use the --starter flag with the --example" in result.stdout
