"""Many streams as somebody would start them by hand, and wait for them."""

import sys

from plain import new_session, read

project, count = sys.argv[1], int(sys.argv[2])
spark = new_session()
readings = read(spark, project)
queries = [
    readings.writeStream.format("parquet")
    .outputMode("append")
    .queryName(f"many_{number}")
    .option("checkpointLocation", f"{project}/data/checkpoint/{number}")
    .trigger(availableNow=True)
    .start(f"{project}/data/many/{number}")
    for number in range(count)
]
for query in queries:
    query.awaitTermination()
spark.stop()
