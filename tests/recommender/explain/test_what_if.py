"""Advice: what helps beyond the tunables names no tunable."""

import re

from kernrec.kernel import find_kernel, kernel_names
from kernrec.model.prior.launch_time import RESOURCES
from kernrec.recommender.explain.what_if import _REMEDIES


def test_structural_remedies_name_no_tunable():
    tunables = {tunable.name for name in kernel_names() for tunable in find_kernel(name).tunables}
    words = {word for remedy in _REMEDIES.values() for word in re.findall(r"\w+", remedy)}
    assert not words & {*tunables, "tile", "tiles", "unrolling", "warps"}
    assert {*RESOURCES} <= {*_REMEDIES}
