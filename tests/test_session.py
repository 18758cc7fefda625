"""The session and the signals, inside a process that was there before."""

import signal
import threading

import pytest
from conftest import run_in_process


@pytest.fixture
def settings(code, monkeypatch):
    """Hand over other settings, and take them back."""
    monkeypatch.setattr(code.session._State, "warned_about", None)
    monkeypatch.setattr(code.session._State, "started", None)

    def hand_over(**changes):
        values = {key.replace("__", "."): value for key, value in changes.items()}
        monkeypatch.setattr(code.session._State, "settings", values)

    return hand_over


def test_a_running_session_is_used_and_what_comes_too_late_is_named_once(
    code, spark, settings, caplog
):
    settings(
        spark__driver__memory="3g",
        spark__sql__shuffle__partitions=3,
        spark__sql__session__timeZone="UTC",
    )

    sessions = {code.session.get_spark(), code.session.get_spark()}

    assert sessions == {spark}
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3", "this is in time"
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "have no effect: spark.driver.memory." in warnings[0]
    spark.conf.set("spark.sql.shuffle.partitions", 2)


def test_a_run_leaves_a_session_open_that_was_there_before(project, spark):
    """A notebook's, for example, with a stream of its own."""
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()

    run_in_process(project, "sensor")

    assert query.isActive
    query.stop()


def test_packages_follow_the_formats_in_use_and_plain_ones_stay(code, settings):
    settings(
        packages={"kafka": "g:kafka:1", "avro": "g:avro:1"},
        spark__jars__packages="g:mine:1",
    )

    wanted = code.session.settings_for("json", "kafka", "KAFKA")

    assert wanted == {"spark.jars.packages": "g:mine:1,g:kafka:1"}


def test_a_package_has_the_version_of_the_installed_spark(code):
    from pyspark import __version__

    name = code.session.spark_package("spark-avro")

    assert name == f"org.apache.spark:spark-avro_2.13:{__version__}"


def test_signal_handlers_are_given_back_after_a_run(project, spark):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]

    run_in_process(project, "sensor")

    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_works_where_signals_cannot_be_handled(project, spark):
    problems = []

    def attempt():
        try:
            run_in_process(project, "sensor")
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()

    assert problems == []
    assert project.lines("data/03_primary/sensor/*.csv")
