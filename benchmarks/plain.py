"""The sensor job as somebody would write it by hand, with the same Spark settings."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
project = sys.argv[1]

spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.sql.shuffle.partitions", len(os.sched_getaffinity(0)))
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.port", "0")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)

readings = (
    spark.readStream.schema("sensor_id STRING, value DOUBLE, read_at TIMESTAMP")
    .option("header", True)
    .option("maxFilesPerTrigger", 1)
    .csv(f"{project}/data/01_raw/stream/sensor")
)
averages = (
    readings.dropna(subset=["sensor_id", "value", "read_at"])
    .where(F.col("value").between(-40.0, 60.0))
    .withWatermark("read_at", "10 minutes")
    .dropDuplicates(["sensor_id", "read_at"])
    .groupBy("sensor_id", F.window("read_at", "5 minutes"))
    .agg(F.round(F.avg("value"), 2).alias("mean_value"), F.count("*").alias("readings"))
    .select(
        "sensor_id",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "mean_value",
        "readings",
    )
)
query = (
    averages.writeStream.format("csv")
    .outputMode("append")
    .queryName("processed.sensor")
    .option("header", True)
    .option("checkpointLocation", f"{project}/data/04_checkpoint/processed_sensor")
    .trigger(availableNow=True)
    .start(f"{project}/data/03_primary/sensor")
)
query.awaitTermination()
spark.stop()
