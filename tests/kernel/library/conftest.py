"""Fixture for the GPU on which tests marked `gpu` run the library; it skips them if there is no GPU."""

import pytest

from tests.helpers.on_gpu import NoGPUError, find_card


@pytest.fixture(scope="module")
def card():
    try:
        return find_card()
    except NoGPUError as error:
        pytest.skip(str(error))
