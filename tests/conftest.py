"""What all tests share.

Property tests draw new examples at a desk, and the same ones in every run of CI. The databases of whoever runs the
tests are neither read nor written.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def no_database_of_the_user(tmp_path_factory):
    """An empty data folder for this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.delenv("KERNREC_DB", raising=False)
        yield
