"""What arrived, and what is on the shelves."""

from .pipeline import create_pipeline

__all__ = ["create_pipeline"]
