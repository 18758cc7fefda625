"""Files wherever a stream keeps them: a laptop, HDFS or an object store."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from py4j.protocol import Py4JJavaError

from .session import get_spark, has_local_files

ABSENT = "FileNotFoundException"  # Java's word for it
STORE = re.compile(r"([^:/]+:(//[^/]*)?)?")  # s3a://bucket, hdfs://host:port, dbfs:
PATIENCE = 25.0  # seconds for a store to say anything; HDFS asks a second node after 20
PATIENCE_WITH_S3 = 15.0  # which has nobody else to ask

_heard: set[str] = set()  # the stores that have answered this process


def is_remote(path: str) -> bool:
    """Whether a path names its file system: s3a://, hdfs://, dbfs:/, abfss://, ..."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def on_disk(path: str) -> str | None:
    """Return where a path leads on a disk of this machine, if it leads there."""
    if path.startswith("file:"):
        return re.sub("^file:/+", "/", path)
    return path if not is_remote(path) and has_local_files() else None


def needs_spark(path: str) -> bool:
    """Whether nobody but Spark can look at a path."""
    return is_remote(path) or not has_local_files()


def at(path: str) -> "Local | Hadoop":
    """Return a file or folder; Spark is asked, and started, only where it must be."""
    return Hadoop(path) if needs_spark(path) else Local(path)


class Local:
    """A place on this machine, which can be looked at without Spark."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether there is a file or folder of that name."""
        return self.path.exists()

    def names(self) -> list[str]:
        """Return the names of what the folder holds; of folders, ending in a slash."""
        found = os.scandir(self.path) if self.path.is_dir() else ()
        return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found]

    def read(self) -> str | None:
        """Return what a small file says, or None if there is none."""
        return self.path.read_text() if self.path.is_file() else None

    def write(self, text: str) -> None:
        """Write a small file, over what was there, as a whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        part.write_text(text)
        part.replace(self.path)

    def changed_at(self) -> float | None:
        """Return when a file was last written, in seconds since 1970."""
        return self.path.stat().st_mtime if self.path.exists() else None

    def size(self) -> int:
        """Return the bytes of a file, or of all files in the folder and below it."""
        found = [self.path] if self.path.is_file() else self.path.rglob("*")
        return sum(file.stat().st_size for file in found if file.is_file())

    def make_folder(self) -> list[str]:
        """Create the folder and those above it; return the new ones, deepest first."""
        new = [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        return [str(folder) for folder in new]

    def remove_if_empty(self) -> None:
        """Delete a folder that holds nothing."""
        if self.path.is_dir() and not self.names():
            self.path.rmdir()

    def delete(self) -> None:
        """Delete the file, or the folder; half a folder is never left under its name."""
        if not self.path.is_dir():
            self.path.unlink(missing_ok=True)
            return
        folder = self.path.resolve()  # a link stays, and leads to an empty folder
        aside = folder.with_name(f".{folder.name}.deleted")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside)
        if self.path.is_symlink():
            folder.mkdir()


class Hadoop:
    """A place on any file system that Spark knows."""

    def __init__(self, path: str) -> None:
        spark = get_spark(path.partition(":")[0])  # s3a, for example, is a package
        jvm: Any = spark._jvm
        settings = spark._jsc.hadoopConfiguration()
        self._path = jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(settings)  # loads classes, asks nobody
        if (store := store_of(path)) not in _heard:
            patience = PATIENCE_WITH_S3 if store.startswith("s3a:") else PATIENCE
            _in_time(lambda: self._files.exists(self._path), patience)
            _heard.add(store)

    def exists(self) -> bool:
        """Whether there is a file or folder of that name."""
        return self._files.exists(self._path)

    def names(self) -> list[str]:
        """Return the names of what the folder holds; of folders, ending in a slash."""
        found = self._if_there(self._files.listStatus) or ()
        names = [(entry.getPath().getName(), entry.isDirectory()) for entry in found]
        return [f"{name}/" if is_folder else name for name, is_folder in names]

    def read(self) -> str | None:
        """Return what a small file says, or None if there is none."""
        stream = self._if_there(self._files.open)
        if stream is None:
            return None
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def _if_there(self, look: Callable[[Any], Any]) -> Any:
        """Look without asking first: a store wants money for every question."""
        try:
            return look(self._path)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != ABSENT:
                raise
            return None

    def write(self, text: str) -> None:
        """Write a small file, over what was there."""
        stream = self._files.create(self._path, True)
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def changed_at(self) -> float | None:
        """Return when a file was last written, in seconds since 1970."""
        found = self._if_there(self._files.getFileStatus)
        return found.getModificationTime() / 1000 if found else None

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
        if self.exists() and not self.names():
            self._files.delete(self._path, False)

    def delete(self) -> None:
        """Delete the file, or the folder with all that is in it."""
        if self.exists() and not self._files.delete(self._path, True):
            raise OSError(f"{self._path.toString()} could not be deleted")


def ask(path: str) -> None:
    """Let a store answer once more; Hadoop itself would be patient for minutes."""
    _heard.discard(store_of(path))
    Hadoop(path)


def store_of(path: str) -> str:
    """Return the part of a path that names a bucket or file system; maybe nothing."""
    return STORE.match(path)[0]  # type: ignore[index]


def _in_time(look: Callable[[], Any], seconds: float) -> Any:
    """Look in a thread that is left behind if nothing comes of it."""
    answers: SimpleQueue[Any] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((look(), None))
        except Exception as error:  # which is the caller's
            answers.put((None, error))

    Thread(target=answer, daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"not a word in {seconds:.0f} seconds") from None
    if error:
        raise error
    return found
