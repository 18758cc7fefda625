"""Files wherever Spark sees them: a laptop, HDFS or an object store."""

from typing import Any

from pyspark.sql import SparkSession


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or folder of that name."""
    files, location = _locate(spark, path)
    return files.exists(location)


def names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of what a folder holds; nothing if there is no such folder."""
    files, location = _locate(spark, folder)
    if not files.exists(location):
        return []
    return [entry.getPath().getName() for entry in files.listStatus(location)]


def make_folder(spark: SparkSession, folder: str) -> list[str]:
    """Create a folder and those above it; return those that are new, deepest first."""
    files, location = _locate(spark, folder)
    above, new = location, []
    while above is not None and not files.exists(above):
        new.append(above.toString())
        above = above.getParent()
    files.mkdirs(location)
    return new


def remove_if_empty(spark: SparkSession, folder: str) -> None:
    """Delete a folder that holds nothing."""
    files, location = _locate(spark, folder)
    if files.exists(location) and not files.listStatus(location):
        files.delete(location, False)


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return what a small file says, or None if there is none."""
    files, location = _locate(spark, path)
    if not files.exists(location):
        return None
    stream = files.open(location)
    try:
        return bytes(stream.readAllBytes()).decode("utf-8")
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file, over what was there."""
    files, location = _locate(spark, path)
    stream = files.create(location, True)
    stream.write(bytearray(text.encode("utf-8")))
    stream.close()


def _locate(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return the file system of a path, and the path as Hadoop knows it."""
    jvm: Any = spark._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    return location.getFileSystem(spark._jsc.hadoopConfiguration()), location
