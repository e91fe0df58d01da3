"""Test that routing assigns each token-expert pair to a tile of its expert."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.recommender.serving.routing import routed

SIZES = {"tokens": st.integers(1, 300), "experts": st.integers(1, 60), "rows": st.sampled_from([16, 32, 64, 128])}


@given(**SIZES, part=st.floats(0, 1))
def test_every_routed_token_is_in_one_tile_of_its_expert(tokens, experts, rows, part):
    top = max(1, round(part * min(experts, 10)))
    routing = routed(tokens, experts, top, rows)
    assert routing.choices == tokens * top
    real = routing.order[routing.order < routing.choices]
    assert sorted(real.tolist()) == list(range(tokens * top))
    assert len(routing.order) == rows * len(routing.experts)
    tiles = routing.order.reshape(-1, rows)
    assert (tiles.min(1) < routing.choices).all()  # no tile is empty
    of_recommendation = {
        c: e for tile, e in zip(tiles, routing.experts, strict=True) for c in tile if c < routing.choices
    }
    for token in range(tokens):
        assert len({of_recommendation[token * top + place] for place in range(top)}) == top


def test_equal_steps_are_routed_equally():
    assert np.array_equal(routed(64, 8, 2, 16).order, routed(64, 8, 2, 16).order)
