"""Fixture for the GPU on which tests marked `gpu` run the library."""

import pytest

from tests.helpers.on_gpu import card_in_use


@pytest.fixture(scope="module")
def card():
    """Provide this machine's GPU; the emulator stands in for it if there is none."""
    with card_in_use() as card:
        yield card
