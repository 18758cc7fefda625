"""The catalog that tells each stream its own name."""

from typing import Any

from kedro.io import DataCatalog

from .stream_sink import StreamSink


class StreamCatalog(DataCatalog):
    """Kedro's catalog, in which a stream is called what its entry is called."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Register a dataset; Kedro comes here when it first builds one, too."""
        super().__setitem__(key, value)
        if isinstance(value, StreamSink):
            value.name = key
