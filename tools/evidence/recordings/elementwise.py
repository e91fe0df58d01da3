"""Recorded addition of two tensors of PyTorch in f32: the op's multiplication and ReLU move no more bytes."""

from pathlib import Path

from evidence.recordings.torch_calls import rows_of
from kernrec.training.vendor_table import Recording


def recordings(data: Path) -> list[Recording]:
    """The recorded set."""
    return rows_of(data, "elementwise", "elements")
