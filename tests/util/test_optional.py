"""Test that optional libraries are used if installed, and that errors name the extra otherwise."""

import sys

import pytest

from kernrec.errors import KernrecError
from kernrec.util.optional import import_optional, require_optional


def test_installed_library_is_returned():
    assert import_optional("json.decoder", "reading", "train") is sys.modules["json.decoder"]


def test_missing_library_error_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(KernrecError) as error:
        import_optional("xgboost", "training a model", "train")
    assert str(error.value) == "training a model needs xgboost: install it with `pip install '.[train]'`"
    with pytest.raises(KernrecError) as required:
        require_optional(("json", "xgboost"), "training a model", "train")
    assert str(required.value) == str(error.value)


def test_required_library_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_optional(("this",), "reading", "train")
    assert "this" not in sys.modules
