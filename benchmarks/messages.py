"""Messages of Kafka, by the project's datasets and by hand, in turns in one JVM.

Takes the folder of a generated project; the last line it prints is JSON. Rows per
second come from the time stamps of Spark's commit files, latencies from Kafka's.
"""

import json
import statistics
import sys
import threading
import time
from itertools import count
from pathlib import Path

from bench_project.extras.datasets import SparkStreamingDataset
from bench_project.extras.streams import installed, session
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from conftest import Project
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.streaming import StreamingQuery
from run import commit_times, say
from servers import Kafka, broker_of, free_port, registry_server

MESSAGES, A_BATCH, WARM_UP = 1_200_000, 100_000, 2
ROUNDS, PROMISED_ROUNDS = 6, 30  # a difference of a hundredth needs the larger number
SINKS, A_SECOND, SECONDS = 10, 1_000, 30
COLUMNS = "sensor_id STRING, value DOUBLE, read_at TIMESTAMP"
FIELDS = [
    {"name": "sensor_id", "type": "string"},
    {"name": "value", "type": "double"},
    {"name": "read_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
NOTE = {"name": "note", "type": "string", "default": ""}


def record(*fields: dict) -> dict:
    """Return an Avro schema."""
    return {"type": "record", "name": "reading", "fields": list(fields)}


def _turn(number: int) -> int:
    """Let each begin as often as the other."""
    return 1 if number % 2 else -1


class Bench:
    """A broker, a registry and a session, to measure with."""

    def __init__(self, folder: Path, kafka: Kafka, registry: str) -> None:
        self._folder = folder
        self._kafka = kafka
        self._registry = registry
        self._numbers = count()
        self._spark = session.get_spark("kafka", "avro")

    # --- rows per second -----------------------------------------------------

    def json(self) -> dict[str, list[float]]:
        """JSON of one schema to parquet."""
        topic = self._kafka.topic("json")
        self._fill(topic, self._rows().select(F.to_json(F.struct("*")).alias("value")))
        parsed = F.from_json(F.col("value").cast("string"), COLUMNS)
        by_hand = self._messages(topic).select(parsed.alias("row")).select("row.*")
        ours = self._ours(topic, {"format": "json", "schema": COLUMNS})
        return self._speeds(ours, by_hand, PROMISED_ROUNDS)

    def avro(self) -> dict[str, list[float]]:
        """Avro of one schema to parquet."""
        ours = self._ours("avro", {"format": "avro", "schema": record(*FIELDS)})
        return self._speeds(ours, self._avro_by_hand("avro"), PROMISED_ROUNDS)

    def mixed_ids(self) -> dict[str, list[float]]:
        """Avro of two versions, both known when the stream starts."""
        topic = self._kafka.topic("mixed")
        versions = [record(*FIELDS), record(*FIELDS, NOTE)]
        for number, schema in enumerate(versions):
            half = self._rows().where(F.col("value") % 2 == number)
            self._fill(topic, self._framed(half, schema, self._register(schema)))
        return self._speeds(self._registered(topic), self._avro_by_hand("avro"))

    def new_id(self) -> dict[str, list[float]]:
        """Avro of a version that was registered after the stream was described."""
        topic = self._kafka.topic("new")
        ours = self._registered(topic)
        schema = record(*FIELDS, NOTE, {**NOTE, "name": "remark"})
        framed = self._framed(self._rows(), schema, self._register(schema))
        self._fill(topic, framed)
        return self._speeds(ours, self._avro_by_hand("avro"))

    def _speeds(
        self, ours: DataFrame, by_hand: DataFrame, rounds: int = ROUNDS
    ) -> dict[str, list[float]]:
        """Return rows per second of each round, in which both run side by side.

        A topic of one partition keeps one core busy, so that each has a core of its
        own, and what slows the machine down slows down both. The first round does
        not count: Java compiles while it runs.
        """
        frames = {"ours": ours, "by hand": by_hand}
        speeds: dict[str, list[float]] = {kind: [] for kind in frames}
        for number in range(rounds + 1):
            places = {
                kind: self._scratch() for kind in sorted(frames)[:: _turn(number)]
            }
            queries = [self._to_parquet(frames[k], c) for k, c in places.items()]
            for query in queries:
                query.awaitTermination()
            for kind, checkpoint in places.items():
                times = commit_times(checkpoint)[WARM_UP:]
                rows = A_BATCH * (len(times) - 1)
                speeds[kind] += [rows / (times[-1] - times[0])] if number else []
        return speeds

    # --- ten sinks -----------------------------------------------------------

    def sinks(self) -> dict[str, float]:
        """Seconds that ten streams take, all of which read the same topic."""
        took: dict[str, list[float]] = {"ours": [], "by hand": []}
        for number in range(ROUNDS):
            for kind in sorted(took)[:: _turn(number)]:
                began = time.monotonic()
                queries = [self._sink(kind) for _ in range(SINKS)]
                for query in queries:
                    query.awaitTermination()
                took[kind].append(time.monotonic() - began)
        return {kind: statistics.median(seconds) for kind, seconds in took.items()}

    def _sink(self, kind: str) -> StreamingQuery:
        frame = self._avro_by_hand("avro")
        if kind == "ours":
            schema = record(*FIELDS)
            frame = self._ours("avro", {"format": "avro", "schema": schema})
        return self._to_parquet(frame, self._scratch())

    def _to_parquet(self, frame: DataFrame, checkpoint: Path) -> StreamingQuery:
        writer = frame.writeStream.trigger(availableNow=True).format("parquet")
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.start(str(self._scratch()))

    # --- latency -------------------------------------------------------------

    def latency(self) -> dict[str, list[float]]:
        """Seconds from a message's arrival in one topic to its copy's in another."""
        took: dict[str, list[float]] = {"ours": [], "by hand": []}
        for kind in ("by hand", "ours", "by hand", "ours"):
            number = next(self._numbers)
            source = self._kafka.topic(f"source-{number}")
            target = self._kafka.topic(f"target-{number}")
            query = getattr(self, f"_copy_{kind.replace(' ', '_')}")(source, target)
            self._send_steadily(source)
            query.processAllAvailable()
            query.stop()
            sent, copied = self._stamps(source), self._stamps(target)
            warm = sorted(sent)[len(sent) // 3 :]
            took[kind] += [copied[id_] - sent[id_] for id_ in warm]
        return {k: statistics.quantiles(v, n=100)[49::49] for k, v in took.items()}

    def _copy_ours(self, source: str, target: str) -> StreamingQuery:
        sink = SparkStreamingDataset(
            file_format="kafka",
            payload={"format": "json"},
            save_args={
                **self._kafka.options,
                "topic": target,
                "checkpoint": str(self._scratch()),
            },
        )
        sink.save(self._ours(source, {"format": "json", "schema": COLUMNS}))
        assert sink.query is not None
        return sink.query

    def _copy_by_hand(self, source: str, target: str) -> StreamingQuery:
        parsed = F.from_json(F.col("value").cast("string"), COLUMNS)
        rows = self._messages(source).select(parsed.alias("row")).select("row.*")
        writer = rows.select(F.to_json(F.struct("*")).alias("value")).writeStream
        writer = writer.format("kafka").options(**self._kafka.options, topic=target)
        return writer.option("checkpointLocation", str(self._scratch())).start()

    def _send_steadily(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.address, "linger.ms": 0})
        began, stop = time.monotonic(), threading.Event()
        for number in range(A_SECOND * SECONDS):
            row = {"sensor_id": str(number), "value": 1.0, "read_at": "2026-01-01"}
            producer.produce(topic, json.dumps(row).encode())
            stop.wait(max(0.0, began + number / A_SECOND - time.monotonic()))
            producer.poll(0)
        producer.flush(30)

    def _stamps(self, topic: str) -> dict[int, float]:
        """Return the seconds at which each message was sent, by its number."""
        return {
            int(json.loads(m.value())["sensor_id"]): m.timestamp()[1] / 1000
            for m in self._kafka.raw_messages(topic)
        }

    # --- what they share -----------------------------------------------------

    def _rows(self) -> DataFrame:
        number = self._spark.range(MESSAGES).select(F.col("id").alias("n"))
        return number.select(
            F.concat(F.lit("s"), F.col("n") % 10).alias("sensor_id"),
            (F.col("n") % 50).cast("double").alias("value"),
            F.timestamp_seconds(F.col("n") + 1_772_438_400).alias("read_at"),
        )

    def _framed(self, rows: DataFrame, schema: dict, number: int) -> DataFrame:
        names = [field["name"] for field in schema["fields"]]
        extra = {n: F.lit("") for n in names if n not in rows.columns}
        columns = F.struct(*names)
        head = F.lit(b"\x00" + number.to_bytes(4, "big"))
        body = to_avro(columns, json.dumps(schema))
        return rows.withColumns(extra).select(F.concat(head, body).alias("value"))

    def _register(self, schema: dict) -> int:
        client = SchemaRegistryClient({"url": self._registry})
        return client.register_schema(
            "reading-value", Schema(json.dumps(schema), "AVRO")
        )

    def _registered(self, topic: str) -> DataFrame:
        registry = {"url": self._registry, "subject": "reading-value"}
        return self._ours(topic, {"format": "avro", "registry": registry})

    def _avro_by_hand(self, topic: str) -> DataFrame:
        row = from_avro("value", json.dumps(record(*FIELDS))).alias("row")
        return self._messages(topic).select(row).select("row.*")

    def fill_avro(self) -> None:
        """Send the messages that several parts read."""
        topic = self._kafka.topic("avro")
        body = to_avro(F.struct("*"), json.dumps(record(*FIELDS)))
        self._fill(topic, self._rows().select(body.alias("value")))

    def _fill(self, topic: str, messages: DataFrame) -> None:
        writer = messages.write.format("kafka").options(**self._kafka.options)
        writer.option("topic", topic).save()

    def _messages(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("kafka")
        return reader.options(**self._options(topic)).load()

    def _ours(self, topic: str, payload: dict) -> DataFrame:
        return SparkStreamingDataset(
            file_format="kafka", load_args=self._options(topic), payload=payload
        ).load()

    def _options(self, topic: str) -> dict[str, object]:
        return {
            **self._kafka.options,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": A_BATCH,
        }

    def _scratch(self) -> Path:
        return self._folder / f"data/scratch/{next(self._numbers)}"


def main(folder: Path, parts: list[str]) -> None:
    """Measure one part after the other."""
    project = Project(folder)
    settings = {
        "spark.master": "local[*]",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "packages": {
            "kafka": installed.spark_package("spark-sql-kafka-0-10"),
            "avro": installed.spark_package("spark-avro"),
        },
    }
    session.configure(settings, folder)
    with broker_of(project, free_port()) as (kafka, _), registry_server(folder) as url:
        bench = Bench(folder, kafka, url)
        bench.fill_avro()
        measured = {}
        for part in parts:
            say(f"messages of Kafka: {part.replace('_', ' ')}")
            measured[part] = getattr(bench, part)()
        print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
