"""The whole project, run as a user runs it."""

import os


def test_a_second_run_adds_nothing_and_a_new_file_adds_only_itself(spark, project):
    deliveries, stock = "data/02_intermediate/inventory/*.csv", "data/03_primary/*.csv"
    samples = project.folder / "data/01_raw/stream/inventory"
    sent = sum(len(f.read_text().splitlines()) for f in samples.glob("*.json"))

    project.run_until_caught_up()
    before = project.lines(deliveries), project.lines(stock)
    assert len(before[0]) == sent

    project.run_until_caught_up()
    assert (project.lines(deliveries), project.lines(stock)) == before

    delivery = '{"sku": "VEG-01", "new_stock": 5, "arrived_at": "2026-03-03T06:00:00Z"}'
    (samples / "new.json").write_text(delivery)
    project.run_until_caught_up()
    added = set(project.lines(deliveries)) - set(before[0])
    assert [line.split(",")[:2] for line in added] == [["VEG-01", "5"]]
    changed = set(project.lines(stock)) ^ set(before[1])
    assert {line.split(",")[0] for line in changed} == {"VEG-01"}


def test_commands_that_need_no_spark_start_none(project, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", os.devnull)

    listed = project.kedro("registry", "list")

    assert listed.returncode == 0, listed.stderr
    assert "inventory" in listed.stdout and "sensor" in listed.stdout
