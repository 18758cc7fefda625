"""Messages of a real broker as columns, and columns as messages."""

import json
import threading
from datetime import datetime
from decimal import Decimal

import pytest
from kedro.io import DatasetError
from servers import PASSWORD, free_port
from shell import DEADLINE

FLAT = "sku STRING, units INT, at TIMESTAMP, price DECIMAL(10,3), on DATE, ok BOOLEAN"
DEEP = f"{FLAT}, box STRUCT<width: DOUBLE, marks: ARRAY<INT>>, by MAP<STRING, INT>"
SIMPLE = "sku STRING, units INT"
JSON = {"format": "json", "schema": SIMPLE}
AVRO = {
    "type": "record",
    "name": "delivery",
    "fields": [
        {"name": "sku", "type": ["null", "string"], "default": None},
        {"name": "units", "type": ["null", "int"], "default": None},
    ],
}
WHEN = datetime(2026, 3, 2, 8, 0, 0, 123456)


@pytest.fixture
def dataset(code, spark):
    """Build a streaming dataset; Spark is there, with Kafka's package."""
    return code.datasets.SparkStreamingDataset


@pytest.fixture
def topic(kafka, request):
    """A topic of the test's own."""
    return kafka.topic(f"t{abs(hash(request.node.nodeid))}")


@pytest.fixture
def source(dataset, kafka, topic):
    """Build an entry that reads the topic from its beginning."""

    def build(payload=None, **keys):
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        load_args = {**kafka.options, **options, **keys.pop("load_args", {})}
        return dataset(
            name="raw.test",
            file_format="kafka",
            load_args=load_args,
            payload=payload,
            **keys,
        )

    return build


@pytest.fixture
def sink(dataset, kafka, topic, tmp_path):
    """Build an entry that writes to the topic, and ends when it caught up."""

    def build(payload=None, **save_args):
        arguments = {
            **kafka.options,
            "topic": topic,
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": "available_now",
        }
        return dataset(
            file_format="kafka", payload=payload, save_args={**arguments, **save_args}
        )

    return build


@pytest.fixture
def written(dataset, spark, tmp_path):
    """Run a stream to its end, and return the rows it gave."""

    def run(frame, number=0):
        there = dataset(
            file_format="parquet",
            filepath=str(tmp_path / f"out{number}"),
            save_args={
                "checkpoint": str(tmp_path / f"out-checkpoint{number}"),
                "trigger": "available_now",
            },
        )
        there.save(frame)
        there.query.processAllAvailable()
        there.query.awaitTermination()
        rows = spark.read.schema(frame.schema).parquet(there.filepath).collect()
        return rows, there.query

    return run


@pytest.fixture
def stream_of(dataset, spark, tmp_path):
    """Turn rows into a stream."""

    def build(rows, schema):
        folder = str(tmp_path / "in")
        spark.createDataFrame(rows, schema).write.parquet(folder)
        entry = dataset(
            file_format="parquet", filepath=folder, load_args={"schema": schema}
        )
        return entry.load()

    return build


def finish(entry):
    entry.query.awaitTermination()
    assert entry.query.exception() is None


# --- there and back ----------------------------------------------------------

PLAIN = ("A", 3, WHEN, Decimal("12.340"), WHEN.date(), True)
EMPTY = (None,) * 6


@pytest.mark.parametrize(
    ("form", "schema", "rows"),
    [
        ("json", DEEP, [(*PLAIN, (1.5, [1, None, 3]), {"x": 1}), (*EMPTY, None, None)]),
        ("avro", DEEP, [(*PLAIN, (1.5, [1, None, 3]), {"x": 1}), (*EMPTY, None, None)]),
        ("csv", FLAT, [PLAIN, (" A ", *PLAIN[1:]), EMPTY]),
    ],
)
def test_every_type_goes_there_and_back(
    source, sink, written, stream_of, form, schema, rows
):
    payload = {"format": form, "schema": schema}
    there = sink({"format": form})
    there.save(stream_of(rows, schema))
    finish(there)
    back, _ = written(source(payload).load())
    assert sorted(map(str, back)) == sorted(
        str(row) for row in _rows(there.data.sparkSession, rows, schema)
    )


def test_csv_does_not_tell_an_empty_text_from_none(source, sink, written, stream_of):
    there = sink({"format": "csv"})
    there.save(stream_of([("", 1), (None, 2)], SIMPLE))
    finish(there)
    rows, _ = written(source({"format": "csv", "schema": SIMPLE}).load())
    assert sorted(map(tuple, rows), key=lambda row: row[1]) == [(None, 1), (None, 2)]


@pytest.mark.parametrize("form", ["json", "avro", "avro by a file"])
def test_a_column_that_is_never_empty_comes_back_as_it_was(
    source, sink, written, stream_of, form, tmp_path
):
    file = tmp_path / "delivery.avsc"
    file.write_text(json.dumps(AVRO))
    schema = {"schema": {"filepath": str(file)}} if "file" in form else {}
    payload = {"format": form.split()[0], **schema}
    there = sink(payload)
    there.save(stream_of([("A",)], "sku STRING").selectExpr("sku", "1 AS units"))
    finish(there)
    back, _ = written(source({"schema": SIMPLE, **payload}).load())
    assert [tuple(row) for row in back] == [("A", 1)]


@pytest.mark.parametrize(
    ("form", "value"), [("csv", b"A;02.03.2026"), ("json", b'{"on":"02.03.2026"}')]
)
def test_options_are_for_the_parser_there_and_back(
    source, sink, written, stream_of, kafka, topic, form, value
):
    schema = "sku STRING, on DATE" if form == "csv" else "on DATE"
    row = ("A", WHEN.date()) if form == "csv" else (WHEN.date(),)
    payload = {"format": form, "options": {"sep": ";", "dateFormat": "dd.MM.yyyy"}}
    there = sink(payload)
    there.save(stream_of([row], schema))
    finish(there)
    assert [v for _, v in kafka.messages(topic)] == [value]
    rows, _ = written(source({**payload, "schema": schema}).load())
    assert [tuple(row) for row in rows] == [row]


def _rows(spark, rows, schema):
    return spark.createDataFrame(rows, schema).collect()


@pytest.mark.parametrize(
    ("form", "kind", "value", "key"),
    [("text", "STRING", "häh?", "k"), ("binary", "BINARY", b"\x00", b"k")],
)
def test_a_bare_value_is_one_column(
    source, sink, written, stream_of, form, kind, value, key
):
    there = sink({"format": form, "key": "id"})
    there.save(stream_of([("k", value)], f"id STRING, line {kind}"))
    finish(there)
    entry = source({"format": form, "schema": f"line {kind}", "keep": ["key"]})
    rows, _ = written(entry.load())
    assert [(row.line, row.message_key) for row in rows] == [(value, key)]
    entry.malformed_only = True
    assert written(entry.load(), 1)[0] == []


def test_without_a_payload_messages_are_as_spark_gives_them(
    source, kafka, topic, written
):
    kafka.send(topic, (b"k", b"v"))
    rows, _ = written(source(load_args={"includeHeaders": True}).load())
    assert (rows[0].key, rows[0].value, rows[0].topic) == (b"k", b"v", topic)
    assert "headers" in rows[0]


def test_key_topic_and_headers_come_from_columns(sink, stream_of, kafka, topic):
    schema = "sku STRING, to STRING, h ARRAY<STRUCT<key: STRING, value: BINARY>>, n INT"
    payload = {"format": "json", "key": "sku", "topic": "to", "headers": "h"}
    there = sink(payload, topic=None)
    there.save(stream_of([("A", topic, [("trace", b"1")], 7)], schema))
    finish(there)
    (message,) = kafka.raw_messages(topic)
    assert message.key() == b"A"
    assert message.headers() == [("trace", b"1")]
    assert json.loads(message.value()) == {"sku": "A", "n": 7}


def test_fields_of_a_message_are_kept_beside_its_columns(source, kafka, topic, written):
    kafka.send(topic, (b"k", b'{"sku": "A", "units": 1}', [("trace", b"1")]))
    keep = ["key", "timestamp", "partition", "offset", "topic", "headers"]
    entry = source({"format": "json", "schema": SIMPLE, "keep": keep})
    (row,) = written(entry.load())[0]
    assert row.asDict() | {"message_timestamp": None} == {
        "sku": "A",
        "units": 1,
        "message_key": "k",
        "message_timestamp": None,
        "message_partition": 0,
        "message_offset": 0,
        "message_topic": topic,
        "message_headers": [("trace", b"1")],
    }


@pytest.mark.parametrize("name", ["message_key", "Message_Key"])
def test_a_kept_field_that_clashes_with_a_column_is_refused(source, name):
    payload = {"format": "json", "schema": f"{name} STRING", "keep": ["key"]}
    with pytest.raises(DatasetError, match=f"a column {name}, which payload.keep"):
        source(payload).load()


def test_options_of_sparks_source_pass_through(source, kafka, topic, written):
    kafka.send(topic, *[b'{"sku": "A", "units": %d}' % n for n in range(10)])
    options = {
        "maxOffsetsPerTrigger": 5,
        "startingOffsets": json.dumps({topic: {"0": 2}}),
        "failOnDataLoss": True,
        "kafka.fetch.max.wait.ms": 100,
    }
    entry = source({"format": "json", "schema": SIMPLE}, load_args=options)
    rows, query = written(entry.load())
    assert sorted(row.units for row in rows) == list(range(2, 10))
    assert query.lastProgress["batchId"] == 1


READERS = {
    "assign": lambda topic: {"assign": {topic: [0]}},
    "assign as text": lambda topic: {"assign": json.dumps({topic: [0]})},
    "pattern": lambda topic: {"subscribePattern": f"{topic}.*"},
    "timestamp": lambda topic: {"subscribe": topic, "startingTimestamp": 0},
    "timestamps": lambda topic: {
        "subscribe": topic,
        "startingOffsetsByTimestamp": json.dumps({topic: {"0": 0}}),
    },
    "offsets": lambda topic: {
        "subscribe": topic,
        "startingOffsets": {topic: {"0": -2}},
        "minOffsetsPerTrigger": 100,
        "maxTriggerDelay": "1s",
        "fetchOffset.numRetries": 5,
        "kafkaConsumer.pollTimeoutMs": 10_000,
    },
}


@pytest.mark.parametrize("kind", READERS)
def test_there_are_many_ways_to_say_what_to_read(dataset, kafka, topic, written, kind):
    kafka.send(topic, b'{"sku": "A", "units": 1}')
    options = {**kafka.options, "startingOffsets": "earliest", **READERS[kind](topic)}
    if kind.startswith("timestamp"):
        del options["startingOffsets"]
    entry = dataset(file_format="kafka", load_args=options, payload=JSON)
    assert [tuple(row) for row in written(entry.load())[0]] == [("A", 1)]


# --- malformed ---------------------------------------------------------------

BAD = {
    "a tombstone": (None, "it has no value (a tombstone)"),
    "an empty one": (b"", "it is empty"),
    "blanks": (b" \n", None),
    "garbage": (b"\xff\xfe!", None),
    "another schema": (b'{"sku": "A", "units": "three"}', None),
}


def good(spark, form):
    """Encode a row that fits."""
    if form == "json":
        return b'{"sku": "A", "units": 1}'
    if form == "csv":
        return b"A,1"
    return b"\x02\x02A\x02\x02"


SCHEMAS = {"json": SIMPLE, "csv": SIMPLE, "avro": AVRO}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("form", SCHEMAS)
def test_a_malformed_message_fails_is_dropped_or_kept(
    code, source, kafka, topic, written, spark, form, kind
):
    value, reason = BAD[kind]
    kafka.send(topic, good(spark, form), (b"key", value), good(spark, form))
    payload = {"format": form, "schema": SCHEMAS[form]}

    rows, query = written(source({**payload, "malformed": "drop"}).load(), 1)
    assert [tuple(row) for row in rows] == [("A", 1)] * 2
    (observed,) = query.lastProgress["observedMetrics"].values()
    assert observed["malformed_messages"] == 1

    entry = source({**payload, "malformed": "keep"}, malformed_only=True)
    (kept,) = written(entry.load(), 2)[0]
    assert (kept.key, kept.value, kept.topic) == (b"key", value, topic)
    assert (kept.partition, kept.offset) == (0, 1)
    assert kept.timestamp and kept.reason
    assert reason is None or kept.reason == reason

    with pytest.raises(Exception) as caught:
        written(source(payload).load(), 3)
    assert code.errors.is_final(caught.value)
    found = source(payload).first_malformed({}, {topic: {"0": 3}})
    assert f"message 1 of partition 0 of topic {topic} cannot be read: " in found
    assert kept.reason in found
    long_ago = source(payload, load_args={"startingTimestamp": 0})
    assert not long_ago.first_malformed({topic: {"0": 2}}, {topic: {"0": 3}})


def test_an_entry_can_be_read_twice_in_one_stream(source, kafka, topic, written):
    kafka.send(topic, b'{"sku": "A", "units": 1}', b"?")
    entry = source({"format": "json", "schema": SIMPLE, "malformed": "drop"})
    rows, _ = written(entry.load().unionByName(entry.load()))
    assert [tuple(row) for row in rows] == [("A", 1)] * 2


REQUIRED = {  # a message without sku, and one with nothing but sku
    "json": (b'{"SKU-ID": "A", "units": 1}', b'{"sku": "B"}'),
    "csv": (b",1", b"B,"),
    "avro": (b"\x02\x00\x02", b"\x00\x02B\x02"),
}


@pytest.mark.parametrize("form", REQUIRED)
def test_a_message_without_a_column_that_must_be_there_is_malformed(
    source, kafka, topic, written, form
):
    lacking, whole = REQUIRED[form]
    kafka.send(topic, lacking, whole)
    schema = "sku STRING NOT NULL, units INT"
    payload = {"format": form, "schema": schema, "malformed": "keep"}
    rows, _ = written(source(payload).load(), 1)
    assert [tuple(row) for row in rows] == [("B", None)]
    ((kept,), _) = written(source(payload, malformed_only=True).load(), 2)
    assert kept.value == lacking
    assert "sku" in kept.reason and "not null" in kept.reason.lower()
    with pytest.raises(Exception, match="message 0 of partition 0"):
        written(source({**payload, "malformed": "fail"}).load(), 3)


NO_TEXT = {"json": b'{"sku": "\xff", "units": 1}', "csv": b"\xff,1"}


@pytest.mark.parametrize("form", NO_TEXT)
def test_bytes_that_are_no_text_are_malformed(
    source, kafka, topic, written, spark, form
):
    kafka.send(topic, NO_TEXT[form], good(spark, form))
    payload = {"format": form, "schema": SIMPLE, "malformed": "keep"}
    rows, _ = written(source(payload).load(), 1)
    assert [tuple(row) for row in rows] == [("A", 1)]
    ((kept,), _) = written(source(payload, malformed_only=True).load(), 2)
    assert (kept.value, kept.reason) == (NO_TEXT[form], "it is not UTF-8")
    strict = source({**payload, "malformed": "fail"}).load()
    if form == "json":  # the one exception, for the sake of speed
        assert written(strict, 3)[0][0].sku == "\ufffd"
    else:
        with pytest.raises(Exception, match="cannot be read: it is not UTF-8"):
            written(strict, 3)


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_bare_value_may_be_empty_but_not_absent(source, kafka, topic, written, form):
    kafka.send(topic, b"", (b"key", None))
    payload = {"format": form, "malformed": "keep"}
    ((row,), _) = written(source(payload).load(), 1)
    assert row.value in ("", b"")
    ((kept,), _) = written(source(payload, malformed_only=True).load(), 2)
    assert (kept.key, kept.reason) == (b"key", "it has no value (a tombstone)")


def test_a_column_may_have_any_name(source, kafka, topic, written):
    kafka.send(topic, b"3,A")
    entry = source({"format": "csv", "schema": "`größe` INT, `a b` STRING"})
    assert [tuple(row) for row in written(entry.load())[0]] == [(3, "A")]


def test_with_its_key_a_tombstone_says_what_was_deleted(source, kafka, topic, written):
    kafka.send(topic, (b"A", None))
    entry = source({"format": "json", "schema": SIMPLE, "keep": ["key"]})
    assert [tuple(row) for row in written(entry.load())[0]] == [(None, None, "A")]


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (2_000_000, "the value of the max.request.size configuration"),
        (20_000, "raise max.message.bytes of the topic"),
    ],
    ids=["client", "topic"],
)
def test_a_message_that_is_too_large_for_the_broker_is_said_so(
    sink, stream_of, code, kafka, topic, size, says
):
    narrow = kafka.topic(f"{topic}-narrow", **{"max.message.bytes": "10000"})
    there = sink({"format": "text"}, topic=narrow)
    there.save(stream_of([("x" * size,)], "line STRING"))
    with pytest.raises(Exception, match="RecordTooLarge") as failure:
        there.query.processAllAvailable()
    assert code.errors.is_final(failure.value)
    assert code.errors.is_final(there.failure)
    assert says in code.errors.first_sentence(there.failure)


# --- refused before anything starts ------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"load_args": {"group.id": "g"}}, "leave it out: the checkpoint keeps the"),
        ({"load_args": {"auto.offset.reset": "x"}}, "startingOffsets: earliest"),
        (
            {"load_args": {"kafka.auto.offset.reset": "x"}},
            "is refused by Spark; instead: startingOffsets: earliest",
        ),
        ({"load_args": {"value.deserializer": "x"}}, "instead: payload.format"),
        ({"load_args": {"mode": "FAILFAST"}}, "payload.malformed: fail, drop or keep"),
        ({"load_args": {"truncate": False}}, "it is an option of the console"),
        ({"load_args": {"security.protocol": "SSL"}}, "write kafka.security.protocol"),
        ({"load_args": {"topic": "t"}}, "a source has subscribe: NAME"),
        ({"load_args": {"assign": "t"}}, "write e.g. assign: {readings: [0, 1]}"),
        ({"load_args": {"schema": SIMPLE}}, "move it under payload"),
        (
            {"load_args": {"kafka.sasl.jaas.config": "x"}},
            "put it into credentials.yml of the environment",
        ),
        (
            {"load_args": {"kafka.ssl.keystore.key": "x"}},
            "put it into credentials.yml of the environment",
        ),
        (
            {"credentials": {"sasl.jaas.config": "x"}},
            "'sasl.jaas.config' in the credentials would be ignored by Spark, which",
        ),
        (
            {"credentials": {"basic.auth.user.info": "x"}},
            "write registry.basic.auth.user.info into the credentials",
        ),
        (
            {"payload": JSON | {"malformed": "drop"}, "streaming": False},
            "with streaming: false there is none; write malformed: fail",
        ),
        (
            {"save_args": {"subscribe": "t", "checkpoint": "c"}},
            "a sink has topic: NAME",
        ),
        ({"payload": {"format": "xml"}}, "payload.format 'xml' does not exist; write"),
        (
            {"payload": {"fromat": "json"}},
            "'fromat' means nothing in payload; write form",
        ),
        ({"payload": JSON | {"malformed": "skip"}}, "write fail, drop or keep"),
        (
            {"payload": {"format": "text", "options": {"sep": ";"}}},
            "payload.options are for the formats csv and json",
        ),
        (
            {"payload": JSON | {"options": {"Mode": "FAILFAST"}}},
            "'Mode' in payload.options is decided by payload.malformed",
        ),
        (
            {"payload": {"format": "avro", "registry": {"url": "http://me:my@x"}}},
            "put it into the credentials, as registry.basic.auth.user.info",
        ),
        (
            {"payload": JSON | {"keep": ["value"]}},
            "payload.keep 'value' does not exist",
        ),
        (
            {"payload": JSON | {"registry": {"url": "x"}}},
            "payload.registry is for format",
        ),
        (
            {"payload": {"format": "avro", "registry": {"subject": "x"}}},
            "payload.registry does not say where it is",
        ),
        (
            {"payload": {"format": "avro", "schema": AVRO, "registry": {"url": "x"}}},
            "payload.schema and payload.registry exclude each other",
        ),
        (
            {"file_format": "json", "filepath": "x", "payload": JSON},
            "file_format: kafka",
        ),
        ({"file_format": "rate", "malformed_only": True}, "remove this entry and the"),
    ],
)
def test_what_an_entry_gets_wrong_is_refused_at_once(code, keys, sentence):
    with pytest.raises(DatasetError, match="(?s).*") as refusal:
        code.datasets.SparkStreamingDataset(**{"file_format": "kafka", **keys})
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("payload", "schema", "sentence"),
    [
        (None, "value STRING, sku STRING", "sku would be lost; add payload"),
        (None, "key STRING", "there is no value; add payload"),
        ({"format": "text"}, "a STRING, b STRING", "writes one column, and here are 2"),
        ({"format": "text"}, "a ARRAY<INT>", "column a is of type array"),
        (
            {"format": "csv"},
            "a ARRAY<INT>",
            "column a is of type array, and csv has no",
        ),
        (
            {"format": "binary"},
            "a INT",
            "Spark cannot make messages of these columns",
        ),
        (None, "value INT", "column value is the value of messages and of type int"),
        (
            {"format": "json", "headers": "h"},
            "a INT, h MAP<STRING, STRING>",
            "make it array<struct<key:string,value:binary>>",
        ),
        (
            {"format": "json", "key": "id"},
            "a INT",
            "payload.key is id, and there is no",
        ),
        (
            {"format": "avro", "schema": AVRO},
            "sku STRING, units INT, more INT",
            "column more is not in the Avro schema and would be lost",
        ),
        (
            {"format": "avro", "schema": AVRO},
            "sku STRING, units LONG",
            "a column does not fit the Avro schema: Cannot convert SQL field 'units'",
        ),
        (
            {"format": "avro", "schema": AVRO},
            "sku STRING",
            "the Avro schema has a field units, and there is no such column",
        ),
    ],
)
def test_columns_that_would_be_lost_are_refused(sink, spark, payload, schema, sentence):
    frame = spark.createDataFrame([], schema)
    assert sentence in " ".join(sink(payload).unstorable(frame.schema))


def test_a_type_that_avro_does_not_have_is_refused(sink, spark):
    frame = spark.createDataFrame([], "sku INTERVAL")
    with pytest.raises(DatasetError, match="Avro has no place for these columns"):
        list(sink({"format": "avro"}).unstorable(frame.schema))


def test_a_sink_without_a_topic_is_refused(sink, spark):
    frame = spark.createDataFrame([], "sku STRING")
    (problem,) = sink({"format": "json"}, topic=None).unstorable(frame.schema)
    assert "no topic is named; add topic: NAME to save_args" in problem


def test_a_topic_by_option_and_by_column_is_refused(sink, spark):
    frame = spark.createDataFrame([], "sku STRING, to STRING")
    payload = {"format": "json", "topic": "to"}
    (problem,) = sink(payload, topic="t").unstorable(frame.schema)
    assert "a topic is named by save_args and by a column" in problem


@pytest.mark.parametrize("form", ["json", "csv", "avro"])
def test_reading_needs_a_schema(source, form):
    with pytest.raises(DatasetError, match="needs a schema"):
        source({"format": form}).load()


def test_an_unknown_topic_and_a_silent_broker_are_named(code, spark, kafka):
    found = code.datasets.kafka.problems(
        {
            "raw.a": {**kafka.options, "subscribe": "nowhere"},
            "raw.b": {
                "kafka.bootstrap.servers": f"127.0.0.1:{free_port()}",
                "subscribe": "x",
            },
            "raw.c": {"subscribe": "x"},
        }
    )
    topic, silent, unnamed = found
    assert f"raw.a: broker {kafka.address} has no topic nowhere; create it" in topic
    assert (
        "raw.b: broker 127.0.0.1:" in silent and "does not answer; start it" in silent
    )
    assert "raw.c: no broker is named; add kafka.bootstrap.servers" in unnamed


def test_silent_brokers_are_waited_for_side_by_side(code, monkeypatch):
    all_are_asked = threading.Barrier(3)

    def asked(settings):
        all_are_asked.wait(DEADLINE)
        raise TimeoutError("TimeoutException")

    monkeypatch.setattr(code.datasets.kafka, "_topics_of", asked)
    names = [f"127.0.0.1:{port}" for port in range(3)]
    found = code.datasets.kafka.problems(
        {name: {"kafka.bootstrap.servers": name, "subscribe": "x"} for name in names}
    )
    assert [
        f"{n}: broker {n} does not answer" in f
        for n, f in zip(names, found, strict=True)
    ] == [True] * 3


# --- security ----------------------------------------------------------------


SECRETS = {
    "PLAIN": lambda broker: broker.by_password("PLAIN"),
    "SCRAM-and-TLS": lambda broker: broker.by_password_and_file(),
    "TLS": lambda broker: broker.by_certificate(),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_passwords_and_certificates_come_from_credentials_alone(
    code, dataset, secured, written, stream_of, tmp_path, kind
):
    secrets = SECRETS[kind](secured)
    topic = f"safe-{kind}"
    secured.client().topic(topic)
    there = dataset(
        file_format="kafka",
        payload={"format": "json"},
        credentials=secrets,
        save_args={
            "topic": topic,
            "checkpoint": str(tmp_path / "c"),
            "trigger": "available_now",
        },
    )
    there.save(stream_of([("A", 1)], SIMPLE))
    finish(there)
    back = dataset(
        file_format="kafka",
        payload=JSON,
        credentials=secrets,
        load_args={"subscribe": topic, "startingOffsets": "earliest"},
    )
    assert list(code.datasets.kafka.problems({"raw": back.connection})) == []
    assert [tuple(row) for row in written(back.load())[0]] == [("A", 1)]
    for entry in (there, back):
        assert PASSWORD not in str(entry) + repr(entry._describe())


def test_a_wrong_password_and_an_unknown_authority_are_one_sentence_without_secrets(
    code, spark, secured
):
    login = secured.by_password("PLAIN", "wrong-horse")["kafka.sasl.jaas.config"]
    unfinished = {"kafka.sasl.jaas.config": login.removesuffix(";")}
    found = code.datasets.kafka.problems(
        {
            "raw.a": {**secured.by_password("PLAIN", "wrong-horse"), "subscribe": "x"},
            "raw.b": {**secured.by_certificate("other-ca.pem"), "subscribe": "x"},
            "raw.c": {**secured.by_password("PLAIN"), **unfinished, "subscribe": "x"},
        }
    )
    password, authority, words = found
    assert "does not accept user and password; correct kafka.sasl" in password
    assert "is not trusted, or does not trust us; correct kafka.ssl" in authority
    assert "kafka.sasl.jaas.config cannot be understood; write" in words
    assert "wrong-horse" not in password + authority + words
