"""What a stream reads and writes. Knows Spark's readers and writers, nothing of runs."""

from . import kafka
from .micro_batch_dataset import MicroBatchDataset
from .spark_streaming_dataset import SparkStreamingDataset
from .stream_sink import HeldBack, StreamSink
from .upsert_dataset import UpsertDataset

__all__ = [
    "HeldBack",
    "MicroBatchDataset",
    "SparkStreamingDataset",
    "StreamSink",
    "UpsertDataset",
    "kafka",
]
