"""How warm it was, per sensor and window of time."""

from .pipeline import create_pipeline

__all__ = ["create_pipeline"]
