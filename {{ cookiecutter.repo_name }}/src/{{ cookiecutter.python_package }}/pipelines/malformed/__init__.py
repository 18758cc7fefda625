"""What could not be understood, put aside."""

from .pipeline import create_pipeline

__all__ = ["create_pipeline"]
