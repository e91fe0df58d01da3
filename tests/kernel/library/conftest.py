"""The card on which tests marked `gpu` run the library; without one they are skipped with the reason."""

import pytest

from tests.helpers.on_gpu import NoGPUError, find_card


@pytest.fixture(scope="module")
def card():
    try:
        return find_card()
    except NoGPUError as error:
        pytest.skip(str(error))
