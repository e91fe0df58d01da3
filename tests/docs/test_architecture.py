"""The table of rooms in the documentation is that of the import rule."""

import re

from tests.helpers.paths import ROOT
from tests.test_import_rule import ROOMS


def test_the_rooms_stand_in_the_order_of_the_import_rule() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `kernrec/(\w+)` \|", page, re.MULTILINE)
    floors = {room: number for number, line in enumerate(ROOMS.split("\n")) for room in line.split()}
    assert sorted(table) == sorted(
        path.name for path in (ROOT / "kernrec").iterdir() if (path / "__init__.py").exists()
    )
    assert [floors[room] for room in table] == sorted(floors[room] for room in table)
