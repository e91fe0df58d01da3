"""Test that the file of trusted keys holds keys and names, or is refused with a one-line error."""

import json

import pytest

from kernrec.errors import UsageError
from kernrec.store.keys import distrust, fits, signer_name, trust, trusted, trusts

KEY = "5f" * 32


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CONFIG", str(tmp_path))
    return tmp_path


def test_key_is_trusted_under_its_name_until_removed():
    trust(KEY, "alice")
    assert trusts(KEY)
    assert signer_name(KEY) == "alice"
    assert not trusts("")
    assert not trusts("0c" * 32)
    assert distrust("alice") == KEY
    assert trusted() == {}


@pytest.mark.parametrize(
    "entry", ["x", {"key": KEY}, {"key": "", "name": "bob"}, {"key": KEY, "name": "a\x1b[2J"}, {"key": 1, "name": "b"}]
)
def test_invalid_key_or_name_is_refused(config, entry):
    (config / "trusted.json").write_text(json.dumps([entry]))
    with pytest.raises(UsageError, match=r"trusted\.json is not a list of keys and names"):
        trusted()


@pytest.mark.parametrize("key", ["00" * 32, "01" + "00" * 31, "00" * 31 + "80", "ec" + "ff" * 30 + "7f", "ff" * 32])
def test_weak_public_key_is_refused(key):
    """These keys are points of small order, or second encodings of a point."""
    assert not fits(key, "00" * 64, b"anything")
    with pytest.raises(UsageError, match="is not a public key"):
        trust(key, "mallory")
