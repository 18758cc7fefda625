"""Half an hour of small batches, with restarts in between: ``make soak``.

Files arrive all the time. Every few minutes a folder stands where the stock should be
written, so that a stream fails and is restarted. Memory, open files and threads of the
driver and of Java are looked at once a minute; first and last are reported.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from run import await_, batches, java_of, live_heap, new_project, say

MINUTE = 60
WARM_UP = 5  # minutes until everything is compiled and cached; one restart is in them
BREAK_EVERY = 4  # minutes
STOCK = "data/03_primary/stock.csv"
FEW = 5  # measurements, of which the least counts
TOLERATED = 1.1  # last against first


def main() -> int:
    """Soak, print a table, and fail if something grew."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=int, default=30)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as scratch:
        measured, restarts, count = soak(Path(scratch), minutes)
    first, last = least(measured[:FEW]), least(measured[-FEW:])
    result = {"minutes": minutes, "batches": count, "restarts": restarts}
    result |= {name: [first[name], last[name]] for name in first}
    file = Path(__file__).with_name("soak.json")
    file.write_text(json.dumps(result, indent=2) + "\n")
    print(file.read_text())
    return int(any(last[name] > first[name] * TOLERATED for name in first))


def least(measured: list[dict]) -> dict[str, float]:
    """Return what is there for good: what comes and goes is missing from one of a few."""
    return {name: min(each[name] for each in measured) for name in measured[0]}


def soak(scratch: Path, minutes: int) -> tuple[list[dict], int, int]:
    """Return what was measured, how often a stream was restarted, and its batches."""
    (scratch / "readings").mkdir()
    project = new_project(scratch / "soak", scratch / "readings")
    parameters = project / "conf/base/parameters.yml"
    text = parameters.read_text().replace("backoff: 5 seconds", "backoff: 1 second")
    parameters.write_text(text.replace("attempts: 3", "attempts: 10"))
    log = project / "log.txt"
    process = subprocess.Popen(
        [Path(sys.executable).with_name("kedro"), "run"],
        cwd=project,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    measured = []
    try:
        await_(lambda: "Starting int." in log.read_text(), process)
        started, file = time.monotonic(), 0
        feed(project, 20_000_000, 0)
        await_((project / STOCK).is_file, process)
        break_stock(
            project, log, process
        )  # what the first restart leaves, it leaves once
        while (age := time.monotonic() - started) < minutes * MINUTE:
            feed(project, file, age)
            file += 1
            if age > (WARM_UP + len(measured)) * MINUTE:
                measured.append(measure(process.pid))
                say(f"minute {age / MINUTE:.0f} of {minutes}: {measured[-1]}")
                if len(measured) % BREAK_EVERY == 0:
                    break_stock(project, log, process)
            time.sleep(1)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    assert code == 0, log.read_text()
    restarts = log.read_text().count("processed.stock failed, restart")
    checkpoint = project / "data/04_checkpoint/int_new_inventory"
    return measured, restarts, batches(checkpoint)


def feed(project: Path, number: int, age: float) -> None:
    """Let a delivery and a reading arrive."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_772_438_400 + age))
    delivery = {"sku": f"S-{number % 50}", "new_stock": 1, "arrived_at": stamp}
    raw = project / "data/01_raw/stream"
    (raw / f"inventory/{number}.json").write_text(json.dumps(delivery) + "\n")
    (raw / f"sensor/{number}.csv").write_text(
        f"sensor_id,value,read_at\ns{number % 10},4.0,{stamp}\n"
    )


def break_stock(project: Path, log: Path, process: subprocess.Popen) -> None:
    """Let the stock's stream fail, and recover."""
    failures = log.read_text().count("processed.stock failed")
    stock = project / STOCK
    stock.unlink()
    stock.mkdir()
    feed(project, 10_000_000 + failures, 0)
    await_(lambda: log.read_text().count("processed.stock failed") > failures, process)
    stock.rmdir()
    await_(stock.is_file, process)


def measure(pid: int) -> dict[str, float]:
    """Return megabytes, open files and threads of the driver and of Java."""
    driver, java = psutil.Process(pid), java_of(pid)
    return {
        "driver MB": round(driver.memory_info().rss / 2**20),
        "live heap MB": round(live_heap(pid)),
        "Java MB": round(java.memory_info().rss / 2**20),
        "driver files": driver.num_fds(),
        "Java files": java.num_fds(),
        "driver threads": driver.num_threads(),
        "Java threads": java.num_threads(),
    }


if __name__ == "__main__":
    sys.exit(main())
