"""Test that the README is short, and that its picture shows a command's output at 80 columns."""

import re
import xml.etree.ElementTree as ET

from tests.helpers.paths import ROOT


def test_readme_is_short_enough_to_read_in_a_minute():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) < 6000
    assert text.index("```sh") < 2600  # the first screen shows the first command
    proofs = re.findall(r"\]\((docs/accuracy/[\w-]+\.md)\)", text)
    assert len(proofs) >= 3
    assert all((ROOT / page).is_file() for page in proofs)


def test_picture_shows_a_terminal_of_80_columns():
    (path,) = re.findall(r"\]\((docs/images/[\w-]+\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [text.text or "" for text in ET.parse(ROOT / path).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert lines[0].startswith("$ kernrec recommend --workload")
    assert max(map(len, lines)) <= 80
    assert any(" today" in line for line in lines)
