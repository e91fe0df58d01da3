"""Recorded layernorm of PyTorch in f32."""

from pathlib import Path

from evidence.recordings.torch_calls import rows_of
from kernrec.training.vendor_table import Recording


def recordings(data: Path) -> list[Recording]:
    """The recorded set."""
    return rows_of(data, "layernorm", "rows")
