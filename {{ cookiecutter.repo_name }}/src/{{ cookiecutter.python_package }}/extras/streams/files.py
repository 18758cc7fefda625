"""Files wherever a stream keeps them: a laptop, HDFS or an object store."""

import re
import shutil
from pathlib import Path
from typing import Any

from .session import get_spark, is_running


def is_remote(path: str) -> bool:
    """Whether a path names its file system: s3a://, hdfs://, dbfs:/, abfss://, ..."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def at(path: str) -> "Local | Hadoop":
    """Return a file or folder as Spark sees it, or, without Spark, as Python does."""
    if is_running() or is_remote(path):
        return Hadoop(path)
    return Local(path)


def near(path: str) -> "Local | Hadoop":
    """Return a file or folder without asking Spark, which is slow, where possible."""
    return Hadoop(path) if is_remote(path) else Local(path)


class Local:
    """A place on this machine, which can be looked at without Spark."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def exists(self) -> bool:
        """Whether there is a file or folder of that name."""
        return self._path.exists()

    def names(self) -> list[str]:
        """Return the names of what the folder holds; none if there is no folder."""
        return [entry.name for entry in self._path.glob("*")]

    def read(self) -> str | None:
        """Return what a small file says, or None if there is none."""
        return self._path.read_text() if self._path.is_file() else None

    def changed_at(self) -> float:
        """Return when a file was last written, in seconds since 1970."""
        return self._path.stat().st_mtime

    def size(self) -> int:
        """Return the bytes of a file, or of all files in the folder and below it."""
        if self._path.is_file():
            return self._path.stat().st_size
        return sum(f.stat().st_size for f in self._path.rglob("*") if f.is_file())

    def delete(self) -> None:
        """Delete the file, or the folder with all that is in it."""
        if self._path.is_dir():
            shutil.rmtree(self._path)
        else:
            self._path.unlink(missing_ok=True)


class Hadoop:
    """A place on any file system that Spark knows."""

    def __init__(self, path: str) -> None:
        spark = get_spark()
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def exists(self) -> bool:
        """Whether there is a file or folder of that name."""
        return self._files.exists(self._path)

    def names(self) -> list[str]:
        """Return the names of what the folder holds; none if there is no folder."""
        if not self.exists():
            return []
        return [
            entry.getPath().getName() for entry in self._files.listStatus(self._path)
        ]

    def read(self) -> str | None:
        """Return what a small file says, or None if there is none."""
        if not self.exists():
            return None
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Write a small file, over what was there."""
        self._write(text, True)

    def write_new(self, text: str) -> bool:
        """Write a small file unless there is one; say whether it was written."""
        try:
            self._write(text, False)
        except Exception:
            if self.exists():
                return False
            raise
        return True

    def _write(self, text: str, over: bool) -> None:
        stream = self._files.create(self._path, over)
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def changed_at(self) -> float:
        """Return when a file was last written, in seconds since 1970."""
        return self._files.getFileStatus(self._path).getModificationTime() / 1000

    def size(self) -> int:
        """Return the bytes of a file, or of all files in the folder and below it."""
        return self._files.getContentSummary(self._path).getLength()

    def make_folder(self) -> list[str]:
        """Create the folder and those above it; return the new ones, deepest first."""
        above, new = self._path, []
        while above is not None and not self._files.exists(above):
            new.append(above.toString())
            above = above.getParent()
        self._files.mkdirs(self._path)
        return new

    def remove_if_empty(self) -> None:
        """Delete a folder that holds nothing."""
        if self.exists() and not self._files.listStatus(self._path):
            self._files.delete(self._path, False)

    def delete(self) -> None:
        """Delete the file, or the folder with all that is in it."""
        self._files.delete(self._path, True)
