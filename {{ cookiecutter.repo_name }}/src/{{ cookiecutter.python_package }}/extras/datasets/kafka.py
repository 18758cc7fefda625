"""Kafka's own words: options that Spark would ignore, and whether a broker answers."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kedro.io import DatasetError
from pyspark.sql.types import StructField

from ..streams.errors import SECRET, first_sentence
from ..streams.session import get_spark

# Options of Kafka's own clients and of other tools, which Spark's source ignores.
INSTEAD = {
    "group.id": "leave it out: the checkpoint keeps the position (kafka.group.id only "
    "where a broker allows certain groups)",
    "auto.offset.reset": "startingOffsets: earliest, or latest",
    "enable.auto.commit": "leave it out: the checkpoint keeps the position",
    "key.deserializer": "payload.keep: [key]",
    "value.deserializer": "payload.format",
    "key.serializer": "payload.key",
    "value.serializer": "payload.format",
    "mode": "payload.malformed: fail, drop or keep",
    "truncate": "leave it out: it is an option of the console",
    "topics": "subscribe: a,b",
    "servers": "kafka.bootstrap.servers: host:port",
    "max.poll.records": "maxOffsetsPerTrigger",
}
# Of these Spark refuses those that it decides itself, even with its prefix.
DECIDED = {key for key in INSTEAD if re.search("auto|serializer", key)}
MESSAGE = {  # the columns that Spark sends, and their types
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
PREFIXES = ("kafka.", "fetchoffset.", "kafkaconsumer.")  # that Spark's source knows
OF_REGISTRY = ("basic.auth.", "bearer.auth.")
READER_ONLY = ("subscribe", "subscribepattern", "assign", "startingoffsets")
WAY = ("bootstrap.servers", "security.", "sasl.", "ssl.")  # what leads to a broker
SECONDS = 20  # that a broker may take to answer
RETRIES = {"default.api.timeout.ms": 1000 * SECONDS, "request.timeout.ms": 10_000}


def refuse_foreign(options: dict[str, Any], where: str) -> None:
    """Refuse what Spark would ignore, and secrets where everybody can see them."""
    refuse_unprefixed(options, where)
    for key in options:
        if re.search(SECRET, key, re.IGNORECASE):
            raise DatasetError(
                f"'{key}' in {where} would be seen by everybody who reads the catalog; "
                "put it into credentials.yml of the environment (conf/kafka, or "
                "conf/local where no --env is given), and name its entry there with "
                "credentials: NAME"
            )


def refuse_unprefixed(options: dict[str, Any], where: str) -> None:
    """Refuse what Kafka's own clients are told, which Spark would ignore."""
    for key in options:
        if key in INSTEAD:
            raise DatasetError(
                f"'{key}' in {where} would be ignored by Spark; instead: {INSTEAD[key]}"
            )
        if (bare := key.removeprefix("kafka.")) in DECIDED:
            raise DatasetError(
                f"'{key}' in {where} is refused by Spark; instead: {INSTEAD[bare]}"
            )
        if key.startswith(OF_REGISTRY):
            raise DatasetError(
                f"'{key}' in {where} would be given to nobody; if it is for a schema "
                f"registry, write registry.{key} into the credentials"
            )
        if "." in key and not key.lower().startswith(PREFIXES):
            raise DatasetError(
                f"'{key}' in {where} would be ignored by Spark, which hands to Kafka "
                f"what begins with kafka.; write kafka.{key}"
            )


def wrong_types(messages: dict[str, StructField]) -> Iterator[str]:
    """Find columns whose type Kafka's writer does not take, by what they are sent as."""
    for name, field in messages.items():
        kind = field.dataType.simpleString()
        if kind.lower() not in MESSAGE[name]:
            yield (
                f"column {field.name} is the {name} of messages and of type {kind}; make "
                f"it {' or '.join(MESSAGE[name])}"
            )


def refuse_misplaced(load_args: dict[str, Any], save_args: dict[str, Any]) -> None:
    """Refuse a reader's options among a writer's, and the other way round."""
    for key in save_args:
        if key.lower() in READER_ONLY:
            raise DatasetError(
                f"'{key}' does nothing in save_args, because it is about reading; a "
                "sink has topic: NAME"
            )
    if "topic" in load_args:
        raise DatasetError(
            "'topic' does nothing in load_args, because it is about writing; a source "
            "has subscribe: NAME"
        )


def as_json(options: dict[str, Any]) -> dict[str, Any]:
    """Write mappings, as ``assign`` and ``startingOffsets`` may be, as Spark wants them."""
    return {k: json.dumps(v) if isinstance(v, dict) else v for k, v in options.items()}


def refuse_wrong_partitions(options: dict[str, Any]) -> None:
    """Refuse an ``assign`` that names no partitions."""
    for key, value in options.items():
        if key.lower() == "assign":
            try:
                valid = isinstance(json.loads(str(value)), dict)
            except ValueError:
                valid = False
            if not valid:
                raise DatasetError(
                    f"assign is '{value}', and should say which partitions of which "
                    "topics to read; write e.g. assign: {readings: [0, 1]}"
                )


def topics(options: dict[str, Any]) -> list[str]:
    """Return the topics that options name, as far as they name any."""
    given = {key.lower(): value for key, value in options.items()}
    if "assign" in given:
        return sorted(json.loads(given["assign"]))
    names = str(given.get("subscribe") or given.get("topic") or "").split(",")
    return [name.strip() for name in names if name.strip()]


def connection(options: dict[str, Any]) -> dict[str, str]:
    """Return what a client of Kafka's needs to connect."""
    return {
        key.removeprefix("kafka."): str(value)
        for key, value in options.items()
        if key.startswith("kafka.")
    }


def problems(wanted: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Ask each broker once for the topics of all entries; say what is not there.

    Args:
        wanted: For each entry of the catalog, its options with its credentials.
    """
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for name, options in wanted.items():
        way = {k: v for k, v in connection(options).items() if k.startswith(WAY)}
        groups.setdefault(str(sorted(way.items())), {})[name] = options
    # Side by side: a silent one takes as long as all of them.
    with ThreadPoolExecutor(max(1, len(groups))) as threads:
        for found in threads.map(_of_one_broker, groups.values()):
            yield from found


def _of_one_broker(entries: dict[str, dict[str, Any]]) -> list[str]:
    names, settings = " and ".join(entries), connection(next(iter(entries.values())))
    servers = settings.get("bootstrap.servers")
    if not servers:
        return [f"{names}: no broker is named; add kafka.bootstrap.servers: host:port"]
    try:
        there = _topics_of({**settings, **RETRIES})
    except Exception as error:
        return [f"{names}: {_explained(error, servers)}"]
    return [
        f"{name}: broker {servers} has no topic {topic}; create it, or correct its name "
        "(kedro streams broker makes those of the catalog)"
        for name, options in entries.items()
        for topic in topics(options)
        if topic not in there
    ]


def _topics_of(settings: dict[str, Any]) -> set[str]:
    """List topics with the client that Spark uses itself."""
    spark = get_spark("kafka")
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    for key, value in settings.items():
        properties.setProperty(key, str(value))
    client = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        return set(client.listTopics().names().get())
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _explained(error: Exception, servers: str) -> str:
    """Translate what Kafka's client says into what to do."""
    text = _causes(error)
    if re.search("JAAS|LoginModule|LoginException", text):
        return (
            f"broker {servers} was not asked, because kafka.sasl.jaas.config cannot be "
            "understood; write org.apache.kafka.common.security.plain.PlainLoginModule "
            'required username="..." password="..."; with the semicolon at its end, '
            "into the credentials"
        )
    if "Authentication" in text and "Ssl" not in text:
        return (
            f"broker {servers} does not accept user and password; correct "
            "kafka.sasl.mechanism and kafka.sasl.jaas.config in the credentials"
        )
    if re.search("Ssl|SSL|Certificate|PKIX|keystore|truststore|PEM", text):
        return (
            f"broker {servers} is not trusted, or does not trust us; correct "
            "kafka.ssl.truststore.certificates (the CA that signed its certificate) or "
            "kafka.ssl.truststore.location in the credentials"
        )
    if "TimeoutException" in text or "No resolvable" in text:
        return (
            f"broker {servers} does not answer; start it (kedro streams broker), or "
            "correct kafka.bootstrap.servers and kafka.security.protocol"
        )
    return f"broker {servers} refuses: {first_sentence(error)}"


def _causes(error: Exception) -> str:
    """Return the classes and messages of an error of Java's, down to its root."""
    java: Any = getattr(error, "java_exception", None)
    found = [str(error)] if java is None else []
    while java is not None:
        found.append(str(java.toString()))
        java = java.getCause()
    return "\n".join(found)
