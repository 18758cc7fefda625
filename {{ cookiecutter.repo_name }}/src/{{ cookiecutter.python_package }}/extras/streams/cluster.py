"""Whether a cluster is there, and of our Spark: Spark itself would ask for minutes."""

import http.client
import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.request import getproxies

from .errors import StreamsError
from .installed import hadoop_setting, refuse_other_version, spark_conf

MASTER = re.compile(r"local($|\[|-cluster\[)|(spark|k8s)://|yarn$")
KUBERNETES = re.compile(r"k8s://(?:(https?)://)?(\[.*\]|[^:/]+)(?::([^/]*))?")
REACHED = 10.0  # seconds that a cluster may take to answer
LOOKED_UP = 3.0  # seconds that its page may take, without which we go on
PAGE_BEGINS = 10_000  # bytes of it
VARIABLE = re.compile(r"\$\{([\w.-]+)\}")  # in a value of Hadoop's files
YARN_SITE = "yarn-site.xml"
RESOURCE_MANAGER = "yarn.resourcemanager."
OF_A_PROXY = "hadoop.rpc.socket.factory.class.default"  # how YARN is reached then
MASTERS_PAGE = ("spark.master.ui.port", 8080)
MASTERS_VERSION = r'class="version[^>]*>\s*([\d.]+).*Spark Master at spark://[^<]*:{}\b'


def was_submitted() -> bool:
    """Whether spark-submit has started Java, and Java us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def refuse_unreachable(master: str, settings: Mapping[str, Any]) -> None:
    """Ask a cluster for an answer; Spark would ask for a minute, or end in a log."""
    if master and not was_submitted():  # vendors have masters that only they know
        _refuse_lost_master(master, settings)
    if master.startswith("spark://"):
        addresses = master.removeprefix("spark://").split(",")
        host, port = _reach(master, map(_host_and_port, addresses))
        if version := _version_on_page(host, port, settings):
            refuse_other_version(version, f"at {master}")


def _refuse_lost_master(master: str, settings: Mapping[str, Any]) -> None:
    """Refuse what nobody listens to, where Java would end before it can say so."""
    refuse_unknown_master(master)
    if master == "yarn":
        _refuse_unconfigured_yarn()
        if places := _resource_managers(settings):
            _reach("yarn", places)
    is_direct = not getproxies().keys() & {"http", "https", "all"}
    if is_direct and (found := KUBERNETES.match(master)):
        scheme, host, port = found.groups()
        usual = "80" if scheme == "http" else "443"
        _reach(master, [(host.strip("[]"), port or usual)])


def refuse_unknown_master(master: str) -> None:
    """Refuse what Spark would end by, in a log, as if Java were the matter."""
    if not MASTER.match(master):
        raise StreamsError(
            f"'{master}' is no master of Spark's; write spark://host:7077, "
            "k8s://https://host:6443, yarn or local[*] as spark.master in spark.yml, or "
            "as --master of kedro streams submit"
        )


def _refuse_unconfigured_yarn() -> None:
    """Refuse to look for a YARN of which nobody says where it is."""
    is_told = any(map(os.environ.get, ("HADOOP_CONF_DIR", "YARN_CONF_DIR")))
    if not is_told and not (spark_conf() / "spark-env.sh").exists():
        raise StreamsError(
            "spark.master is yarn, and nothing says where YARN is; set HADOOP_CONF_DIR "
            "to the folder with the cluster's core-site.xml and yarn-site.xml"
        )


def _resource_managers(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return where YARN is, if a file or ``spark.yml`` says it, and it is reached directly."""

    def told(name: str, file: str = YARN_SITE, depth: int = 3) -> str:
        value = settings.get(f"spark.hadoop.{name}") or hadoop_setting(file, name)
        if not depth:  # Hadoop's files may go in circles
            return str(value or "")
        return VARIABLE.sub(
            lambda found: told(found[1], depth=depth - 1), str(value or "")
        )

    if told(OF_A_PROXY, "core-site.xml"):
        return []
    names = [f".{n.strip()}" for n in told(f"{RESOURCE_MANAGER}ha.rm-ids").split(",")]
    places = []
    for name in names if names != ["."] else [""]:
        host = told(f"{RESOURCE_MANAGER}hostname{name}")
        usual = f"{host}:8032" if host else ""
        places.append(told(f"{RESOURCE_MANAGER}address{name}") or usual)
    found = map(_host_and_port, places)
    return [(host, port) for host, port in found if host and "$" not in host]


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _reach(master: str, places: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the first place of a cluster that answers."""
    for host, port in places:
        try:
            socket.create_connection((host, int(port)), REACHED).close()
            return host, port
        except (OSError, ValueError) as error:  # ValueError: there is no port
            reason = error
    if master == "yarn":
        raise StreamsError(
            f"YARN does not answer at {host}:{port} ({reason}); start its "
            f"ResourceManager, or correct {YARN_SITE} in HADOOP_CONF_DIR"
        )
    raise StreamsError(
        f"the cluster at {master} does not answer ({reason}); start its master, or "
        "correct spark.master in spark.yml, or --master"
    )


def _version_on_page(
    host: str, masters_port: str, settings: Mapping[str, Any]
) -> str | None:
    """Look up which Spark a master runs; another one would not even answer ours."""
    try:
        port = int(settings.get(*MASTERS_PAGE))
        page = http.client.HTTPConnection(host, port, timeout=LOOKED_UP)
        page.request("GET", "/")
        text = page.getresponse().read(PAGE_BEGINS).decode(errors="replace")
        found = re.search(MASTERS_VERSION.format(masters_port), text, re.DOTALL)
    except (OSError, http.client.HTTPException, ValueError):
        return None  # there is no such page, or it is somebody else's
    return found[1] if found else None
