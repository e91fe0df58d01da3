"""Results of a core as Python and compiled, side by side."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st

from kernrec.util.compiled import PACKAGE, choose

draws = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def in_both_forms(
    modules: object, results: Callable[[], list[np.ndarray]], within: float = 0.0, near: float = 0.0
) -> None:
    """Asserts that a function has the same results in both forms of the core that a module, or several, ask for: to the
    last bit, or within a relative error (`within`), or an absolute one where that is larger (`near`).

    Without a C compiler both are Python: tests/test_wheel.py holds that with one there is a compiled core.
    """
    by_form = []
    for choice in ("python", None):
        with pytest.MonkeyPatch.context() as patch:
            forms: dict[str, object] = {}

            def form(room: str, choice: str | None = choice, forms: dict[str, object] = forms) -> object:
                if room not in forms:
                    forms[room] = choose(room, PACKAGE.joinpath(*room.split(".")[1:]), choice)
                return forms[room]

            for module in modules if isinstance(modules, tuple) else (modules,):
                patch.setattr(module, "core", form)
            by_form.append(results())
    for plain, built in zip(*by_form, strict=True):
        np.testing.assert_allclose(built, plain, rtol=within, atol=near)
