"""The figure of `kernrec explain --plot`."""

from pathlib import Path
from typing import Any

import pytest

from kernrec.cli import plot
from kernrec.cli.app import run


@pytest.mark.parametrize("shape", ["m=4096,n=4096,k=4096", "m=512,n=512,k=512"])
def test_the_front_takes_a_good_part_of_the_view(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs Matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    words = [
        "--op",
        "matmul",
        "--gpu",
        "rtx4090",
        "--shape",
        shape,
        "--dtype",
        "f16",
        "--plot",
        str(tmp_path / "a.svg"),
    ]
    assert run(["explain", *words]) == 0
    axes = figures[0].axes[1]
    (front,) = [line for line in axes.lines if line.get_label().startswith("front over power limits")]
    for values, (low, high) in ((front.get_xdata(), axes.get_xlim()), (front.get_ydata(), axes.get_ylim())):
        assert low < min(values)
        assert max(values) < high
        assert max(values) - min(values) > 0.3 * (high - low)
    assert len(axes.texts) == len(front.get_xdata())
    assert all(text.get_text().endswith(" W") for text in axes.texts)
