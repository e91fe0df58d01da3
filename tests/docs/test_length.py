"""Test that documentation pages stay short."""

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def _words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide_has_at_most_900_words(guide):
    assert _words(guide) <= 900


def test_docs_and_guides_have_at_most_14000_words():
    assert sum(map(_words, [*GUIDES, *(ROOT / "docs").glob("*.md")])) <= 14000
