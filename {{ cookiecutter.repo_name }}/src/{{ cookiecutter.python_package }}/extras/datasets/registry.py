"""A schema registry that speaks Confluent's language."""

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from kedro.io import DatasetError

from ..streams.errors import first_sentence
from .avro import HEAD

NOT_FOUND = 404
SILENCE = 10  # seconds without an answer after which a registry counts as down
ASK_AGAIN = 60.0  # seconds until it is asked once more for a schema that was no help
Secrets = tuple[tuple[str, Any], ...]

_unknown: dict[tuple[str, int], float] = {}


class Registry:
    """The schemas of one subject."""

    def __init__(self, config: dict[str, Any], credentials: dict[str, Any]) -> None:
        self.url = str(config["url"])
        if "@" in self.url:
            raise DatasetError(
                "payload.registry.url has a user or password in it, which would be "
                "shown; put it into the credentials, as registry.basic.auth.user.info: "
                "user:password"
            )
        self.subject = config.get("subject")
        self._version = config.get("version", "latest")
        secrets = {
            key.removeprefix("registry."): value
            for key, value in credentials.items()
            if key.startswith("registry.")
        }
        self.secrets: Secrets = tuple(sorted(secrets.items()))

    def newest(self) -> tuple[int, dict[str, Any]]:
        """Return the id and the schema that rows have: the newest, or a pinned one."""
        subject = self._named()
        with self._explained():
            if self._version == "latest":
                found = self._client().get_latest_version(subject)
            else:
                found = self._client().get_version(subject, int(self._version))
        return int(found.schema_id or 0), _record(found.schema)

    def all(self) -> dict[int, dict[str, Any]]:
        """Return all versions that there are by now, by id.

        One that is no record is left out, and its messages are malformed.
        """
        client, subject = self._client(), self._named()
        with self._explained():
            numbers = client.get_versions(subject)
            found = [client.get_version(subject, number) for number in numbers]
        return {
            int(v.schema_id or 0): _record(v.schema)
            for v in found
            if _is_record(v.schema)
        }

    def register(self, schema: dict[str, Any], topic: str | None) -> int:
        """Add a schema, unless it is there already; return its id."""
        subject = self.subject or f"{topic}-value"
        with self._explained():
            new = Schema(json.dumps(schema), "AVRO")
            return self._client().register_schema(subject, new)

    def refusals(self, schema: dict[str, Any], topic: str | None) -> Iterator[str]:
        """Say why a schema could not be registered; register nothing."""
        if not self.subject and not topic:
            yield (
                "payload.registry does not say whose schema to register; add subject: "
                "NAME, because a column names the topic"
            )
            return
        with self._explained():
            subject = self.subject or f"{topic}-value"
            client, new = self._client(), Schema(json.dumps(schema), "AVRO")
            is_known = subject in client.get_subjects()
            fits = not is_known or client.test_compatibility(subject, new)
        if not fits:
            yield (
                f"the registry refuses these columns as a new version of {subject}, "
                "because readers of the versions before could not read them; keep the "
                "columns it has, or write another subject"
            )

    def newcomers(self, reader: dict[str, Any]) -> "Newcomers":
        """Return what decodes messages of versions that are not there yet."""
        return Newcomers(self, reader)

    def _named(self) -> str:
        if not self.subject:
            raise DatasetError(
                "payload.registry does not say whose schema to use; add subject: "
                "<topic>-value"
            )
        return self.subject

    def _client(self) -> SchemaRegistryClient:
        return _client(self.url, self.secrets)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in a sentence what a registry refuses."""
        try:
            yield
        except Exception as error:
            raise DatasetError(
                f"the schema registry at {self.url} refuses subject {self.subject}: "
                f"{first_sentence(error)}; correct url, subject and version under "
                "payload.registry, or registry.basic.auth.user.info in the credentials"
            ) from error


class Newcomers:
    """Rewrites messages whose schema is newer than the stream, for its reader.

    Runs on executors, each process of which asks for a schema once, and again after a
    minute for one that is not there or cannot be used.
    """

    def __init__(self, registry: Registry, reader: dict[str, Any]) -> None:
        self._url, self._secrets = registry.url, registry.secrets
        self._reader = json.dumps(reader)

    def __call__(self, message: bytes | None) -> bytes | None:
        """Return the record in the reader's schema; None if it is not possible."""
        if message is None:
            return None
        number = int.from_bytes(message[1:HEAD], "big")
        if _is_unknown(self._url, number):
            return None
        try:
            writer = _asked(self._url, self._secrets, number)
        except ConnectionError:
            raise  # the message may be good: try again
        except Exception:
            return None
        return _rewritten(message[HEAD:], writer, _parsed(self._reader))


def _rewritten(body: bytes, writer: Any, reader: Any) -> bytes | None:
    """Return a record as the reader would have written it; None if it does not fit.

    With the names of its types, so that a union of records stays what it is; where the
    reader has no union, with those names alone without which a type is not known.
    """
    for only_where_needed in (False, True):
        moved = io.BytesIO()
        with suppress(Exception):
            row = fastavro.schemaless_reader(
                io.BytesIO(body),
                writer,
                reader,
                return_named_type=True,
                return_named_type_override=only_where_needed,
            )
            fastavro.schemaless_writer(moved, reader, row)
            return moved.getvalue()
    return None


@lru_cache(maxsize=1000)
def _asked(url: str, secrets: Secrets, number: int) -> Any:
    """Ask for a schema, once; one that is no Avro, or is not there, is an error."""
    try:
        schema = _client(url, secrets).get_schema(number)
    except SchemaRegistryError as error:
        if error.http_status_code != NOT_FOUND:
            raise ConnectionError(f"the schema registry at {url}: {error}") from error
        _unknown[url, number] = time.monotonic()
        raise
    except Exception as error:
        raise ConnectionError(
            f"the schema registry at {url} does not answer: {error}"
        ) from error
    try:
        return _parsed(str(schema.schema_str))
    except Exception:
        _unknown[url, number] = time.monotonic()
        raise


def _is_unknown(url: str, number: int) -> bool:
    """Whether the registry had, a short while ago, no such schema, or one of no use."""
    asked_at = _unknown.get((url, number))
    return asked_at is not None and time.monotonic() < asked_at + ASK_AGAIN


@lru_cache(maxsize=1000)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


def _client(url: str, secrets: Secrets) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url, "timeout": SILENCE, **dict(secrets)})


def _record(schema: Schema) -> dict[str, Any]:
    """Return a schema as Spark can use it."""
    if not _is_record(schema):
        raise DatasetError(
            "the registry's schema is not one whole Avro record, and only that becomes "
            "columns; register a record that refers to no other schema"
        )
    return json.loads(str(schema.schema_str))


def _is_record(schema: Schema) -> bool:
    """Whether a schema is a record, and whole."""
    if schema.references or schema.schema_type not in (None, "AVRO"):
        return False
    content = json.loads(str(schema.schema_str))
    return isinstance(content, dict) and content.get("type") == "record"
