"""Registers the starter alias ``spark-streaming`` with Kedro."""

from pathlib import Path

from kedro.framework.cli.starters import KedroStarterSpec

_PACKAGED = Path(__file__).parent / "template"
_CHECKOUT = Path(__file__).parents[2]

starters = [
    KedroStarterSpec(
        alias="spark-streaming",
        template_path=str(_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT),
    )
]
