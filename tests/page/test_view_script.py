"""Test the page's script without a browser: filtered fronts and ticks. Needs Node."""

import json
import shutil
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from kernrec.page.document import content

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")

FRONT = {
    "operating_points": [{"power_limit_w": 450, "default": True}, {"power_limit_w": 300, "default": False}],
    "points": {"latency_s": [1.0, 1.5, 2.0, 1.2, 3.0], "energy_j": [9.0, 4.0, 3.9, 5.0, 8.0], "point": [0, 1, 1, 0, 1]},
    "front": [0, 3, 1, 2],
}


def computed(expression: str, **values: Any) -> Any:
    bound = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    script = "\n".join([content("format.js"), content("view.js"), bound, f"console.log(JSON.stringify({expression}));"])
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_power_limit_reduces_the_front_to_undominated_points():
    fronts = {"": [0, 3, 1, 2], "default": [0, 3], "300": [1, 2], "450": [0, 3, 1, 2], "100": []}
    narrowed = computed("limits.map((limit) => kernrec.narrowed(front, limit).front)", front=FRONT, limits=list(fronts))
    assert narrowed == list(fronts.values())


def test_logarithmic_axis_has_enough_labels():
    ranges = [
        (low, low * ratio) for low in (0.0013, 0.8, 4.1, 97.0, 2.3e6) for ratio in (1.01, 1.3, 2.5, 8, 40, 900, 1e6)
    ]
    for (low, high), ticks in zip(
        ranges, computed("ranges.map((r) => kernrec.logTicks(...r))", ranges=ranges), strict=True
    ):
        assert 4 <= len(ticks) <= 20
        assert ticks == sorted(set(ticks))
        assert all(low <= tick <= high for tick in ticks)
        ends = [low, *ticks, high]
        assert max(b / a for a, b in pairwise(ends)) <= max((high / low) ** 0.5, 10.0)
