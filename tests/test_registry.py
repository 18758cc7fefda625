"""Avro messages whose schemas a real registry keeps."""

import importlib
import json
import struct

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from kedro.io import DatasetError
from servers import free_port, guarded, registry_server
from test_kafka import dataset, finish, sink, source, stream_of, topic, written

__all__ = ["dataset", "sink", "source", "stream_of", "topic", "written"]  # fixtures

NAME = {"name": "sku", "type": "string"}
COUNT = {"name": "units", "type": ["null", "int"], "default": None}
AISLE = {"name": "aisle", "type": "string", "default": "?"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FOREIGN = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'


def record(*fields):
    return {"type": "record", "name": "delivery", "fields": list(fields)}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with registry_server(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def register(url, topic):
    """Add a version to the topic's schema; return its id."""
    client = SchemaRegistryClient({"url": url})

    def add(*fields):
        schema = Schema(json.dumps(record(*fields)), "AVRO")
        return client.register_schema(f"{topic}-value", schema)

    return add


@pytest.fixture
def payload(url, topic):
    def build(**registry):
        given = {"url": url, "subject": f"{topic}-value", **registry}
        return {"format": "avro", "registry": given}

    return build


def framed(number, body):
    return b"\x00" + struct.pack(">I", number) + body


def text(word):
    return bytes([2 * len(word)]) + word.encode()


def test_versions_of_a_schema_in_one_topic_decode_into_the_newest(
    source, kafka, topic, written, register, payload
):
    first = register(NAME)
    second = register(NAME, COUNT)
    kafka.send(topic, framed(first, text("A")), framed(second, text("B") + b"\x02\x0e"))
    rows, _ = written(source(payload()).load())
    assert sorted(map(tuple, rows)) == [("A", None), ("B", 7)]


def test_a_pinned_version_is_read_by(source, kafka, topic, written, register, payload):
    register(NAME)
    second = register(NAME, COUNT)
    kafka.send(topic, framed(second, text("B") + b"\x02\x0e"))
    rows, _ = written(source(payload(version=1)).load())
    assert [row.asDict() for row in rows] == [{"sku": "B"}]


def test_a_schema_that_is_registered_while_the_stream_runs_is_asked_for_once(
    source, kafka, topic, written, register, payload, url
):
    """By each process that decodes, of which there are two at most, not by each batch."""
    first = register(NAME, COUNT)
    asked = []
    with guarded(url, asked=asked) as address:
        one_by_one = {"maxOffsetsPerTrigger": 1}
        frame = source(payload(url=address), load_args=one_by_one).load()
        later = register(NAME, COUNT, AISLE)
        kafka.send(topic, framed(first, text("A") + b"\x00"))
        for _ in range(5):
            kafka.send(topic, framed(later, text("C") + b"\x02\x04" + text("east")))
        begun = len(asked)
        rows, query = written(frame)
    assert sorted(map(tuple, rows)) == [("A", None), *[("C", 2)] * 5]
    assert query.lastProgress["batchId"] == 5
    assert {path.partition("?")[0] for path in asked[begun:]} == {
        f"/schemas/ids/{later}"
    }
    assert len(asked[begun:]) <= 2


def test_what_has_no_frame_or_an_unknown_schema_is_malformed(
    source, kafka, topic, written, register, payload
):
    known = register(NAME, COUNT)
    bad = [b"{}", b"\x00\x00", framed(987_654, text("A")), framed(known, b"\x7f")]
    kafka.send(topic, *bad, framed(known, text("A") + b"\x00"))
    entry = source({**payload(), "malformed": "keep"}, malformed_only=True)
    kept, _ = written(entry.load())
    assert [bytes(row.value) for row in sorted(kept, key=lambda r: r.offset)] == bad
    reasons = {bytes(row.value): row.reason for row in kept}
    assert "does not begin with a zero byte" in reasons[b"{}"]
    assert "does not begin with a zero byte" in reasons[b"\x00\x00"]
    assert "or the registry has no such schema" in reasons[bad[2]]
    assert f"it is no record of schema {known}" in reasons[bad[3]]


def test_an_old_version_that_is_no_record_hinders_nobody(
    source, kafka, topic, written, register, payload, url
):
    client = SchemaRegistryClient({"url": url})
    bare = client.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    client.set_compatibility(f"{topic}-value", "NONE")
    known = register(NAME)
    kafka.send(topic, framed(bare, text("B")), framed(known, text("A")))
    rows, _ = written(source({**payload(), "malformed": "drop"}).load())
    assert [tuple(row) for row in rows] == [("A",)]


def test_a_sink_registers_its_schema_when_it_is_asked_to(
    source, sink, kafka, topic, written, stream_of, payload, url
):
    there = sink({**payload(register=True), "key": "sku"})
    there.save(stream_of([("A", 1)], "sku STRING, units INT"))
    finish(there)
    (message,) = kafka.raw_messages(topic)
    number = struct.unpack(">I", message.value()[1:5])[0]
    schema = SchemaRegistryClient({"url": url}).get_schema(number)
    assert [f["name"] for f in json.loads(schema.schema_str)["fields"]] == [
        "sku",
        "units",
    ]
    rows, _ = written(source(payload()).load())
    assert [tuple(row) for row in rows] == [("A", 1)]


def test_a_sink_writes_by_the_schema_that_is_registered(
    source, sink, written, stream_of, register, payload
):
    register(NAME, COUNT)
    there = sink(payload())
    there.save(stream_of([("A", 1)], "sku STRING NOT NULL, units INT"))
    finish(there)
    assert list(there.unstorable(there.data.select("sku").schema)) == [
        "the Avro schema has a field units, and there is no such column"
    ]
    wide = there.data.selectExpr("sku", "CAST(units AS LONG) AS units")
    (problem,) = there.unstorable(wide.schema)
    assert "Cannot convert SQL field 'units' to Avro field" in problem
    rows, _ = written(source(payload()).load())
    assert [tuple(row) for row in rows] == [("A", 1)]


@pytest.mark.parametrize("wrong", ["subject", "url"])
def test_a_registry_that_does_not_help_is_one_sentence(source, payload, wrong):
    given = {"url": f"http://127.0.0.1:{free_port()}"} if wrong == "url" else {}
    with pytest.raises(DatasetError, match="the schema registry at .* refuses subject"):
        source(payload(**given)).load()


def test_a_process_asks_once_for_a_new_schema_whether_it_is_of_use_or_not(
    code, source, kafka, topic, written, register, payload, monkeypatch
):
    registry = importlib.import_module("cold_store.extras.datasets.registry")
    asked = []
    client = registry._client

    def counting(*arguments):
        asked.append(arguments)
        return client(*arguments)

    first = register(NAME)
    there = SchemaRegistryClient({"url": payload()["registry"]["url"]})
    foreign = there.register_schema("foreign", Schema(FOREIGN, "JSON"))
    monkeypatch.setattr(registry, "_client", counting)
    rewrite = registry.Newcomers(
        registry.Registry(payload()["registry"], {}), record(NAME)
    )
    for _ in range(100):
        assert rewrite(framed(first, text("A"))) == text("A")
        assert rewrite(framed(987_654, text("A"))) is None
        assert rewrite(framed(foreign, text("A"))) is None
    assert len(asked) == 3


def test_a_new_version_keeps_types_and_what_a_union_holds(register, payload):
    registry = importlib.import_module("cold_store.extras.datasets.registry")
    event = [
        {"type": "record", "name": name, "fields": [NAME]} for name in ("In", "Out")
    ]
    fields = [
        {"name": "event", "type": event},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": ["null", PRICE]},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
    ]
    newer = register(*fields, AISLE)
    rewrite = registry.Newcomers(
        registry.Registry(payload()["registry"], {}), record(*fields)
    )
    out = b"\x02" + text("A")  # the second of the union
    rest = b"\x82\x80\x80\x80\x10" + b"\x02\x02\x7d" + b"\x02" + text("x") + b"\x00\x00"
    assert rewrite(framed(newer, out + rest + text("east"))) == out + rest


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ({"type": "enum", "name": "State", "symbols": ["OLD", "NEW"]}, b"\x02"),
        ({"type": "record", "name": "Box", "fields": [NAME]}, text("A")),
    ],
    ids=["enum", "record"],
)
def test_a_new_version_may_make_a_field_optional(register, payload, kind, body):
    registry = importlib.import_module("cold_store.extras.datasets.registry")
    newer = register({"name": "thing", "type": ["null", kind]})
    rewrite = registry.Newcomers(
        registry.Registry(payload()["registry"], {}),
        record({"name": "thing", "type": kind}),
    )
    assert rewrite(framed(newer, b"\x02" + body)) == body
    assert rewrite(framed(newer, b"\x00")) is None  # the reader must have one


def test_a_registry_that_is_silent_is_waited_for(code, register, payload):
    registry = importlib.import_module("cold_store.extras.datasets.registry")
    first = register(NAME)
    silent = payload(url=f"http://127.0.0.1:{free_port()}")["registry"]
    rewrite = registry.Newcomers(registry.Registry(silent, {}), record(NAME))
    with pytest.raises(ConnectionError, match="does not answer") as failure:
        rewrite(framed(first, text("A")))
    assert not code.errors.is_final(failure.value)


def test_a_new_version_that_readers_could_not_read_is_refused_before_it_is_registered(
    sink, spark, register, payload, topic, url
):
    register(NAME)
    client = SchemaRegistryClient({"url": url})
    client.set_compatibility(f"{topic}-value", "FULL")
    frame = spark.createDataFrame([], "units INT")
    (problem,) = sink(payload(register=True)).unstorable(frame.schema)
    assert f"refuses these columns as a new version of {topic}-value" in problem
    assert client.get_versions(f"{topic}-value") == [1]


def test_a_password_opens_a_registry_and_is_not_given_to_kafka(
    source, kafka, topic, written, register, payload, url
):
    number = register(NAME)
    kafka.send(topic, framed(number, text("A")))
    with guarded(url, "bob:builder") as address:
        secrets = {"registry.basic.auth.user.info": "bob:builder"}
        with pytest.raises(DatasetError, match="refuses subject"):
            source(payload(url=address)).load()
        entry = source(payload(url=address), credentials=secrets)
        rows, _ = written(entry.load())
    assert [tuple(row) for row in rows] == [("A",)]
    assert entry._secrets() == {}
    assert "builder" not in repr(entry) + str(entry._describe())
