"""Test checking all contributed bundles of a remote with the code that pulls them."""

import json
import shutil
import zipfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from kernrec.store.measurement import Measurement
from kernrec.store.share.outgoing import Selection
from kernrec.store.share.place import Folder
from kernrec.store.share.push import check_place
from tests.helpers.command import run_here
from tests.helpers.paths import ROOT
from tests.helpers.sharing import GPU, Person, measurements

pytestmark = pytest.mark.usefixtures("read_here")


def contribute(person: Person, folder: Path, rows: Sequence[Measurement]) -> Path:
    """Push a person's rows, replayed rows too, a minute after the last bundle, so that keys do not decide the order."""
    person.measure(rows)
    before = set(folder.glob("*/*.zip"))
    made_at = datetime(2026, 3, 2, 12, len(before))
    session = f"session = '{rows[0].origin.session}'"
    with (
        patch("kernrec.store.share.outgoing.now", return_value=made_at.isoformat()),
        patch.object(Selection, "condition", lambda _: session),
    ):
        assert person.push(folder) == len(rows)
    (new,) = set(folder.glob("*/*.zip")) - before
    return new


@pytest.fixture
def folder(tmp_path):
    (path := tmp_path / "contributed").mkdir()
    return path


@pytest.mark.every(3)
def test_bundles_of_several_users_are_listed_pulled_and_compared(folder, tmp_path):
    for name, slower in (("ann", 1.0), ("ben", 1.0), ("cyd", 1.5)):
        contribute(Person(tmp_path / name), folder, measurements(name, 5, latency_s=1e-3 * slower))
    report = check_place(Folder(folder))
    assert (report.bundles, report.bad) == (3, {})
    (row,) = report.rows
    assert (row["gpu"], row["kernel"], row["configs"], row["rows"]) == (GPU, "matmul_simt", 5, 15)
    assert len(row["signers"]) == 3  # type: ignore[arg-type]
    assert Person(tmp_path / "reader").pull(folder).measurements == 15


@pytest.mark.every(3)
def test_each_invalid_bundle_is_reported_on_one_line(folder, tmp_path):
    ann, ben, reader = (Person(tmp_path / name) for name in ("ann", "ben", "reader"))
    good = contribute(ann, folder, measurements("monday", 3))
    replayed = contribute(ben, folder, measurements("replayed", 2, replayed=True))
    renamed = good.with_name(good.name.replace("2", "3", 1))
    shutil.copy(good, renamed)
    copied = contribute(ben, folder, measurements("monday", 3))
    broken = good.with_name(f"{good.name[:-16]}{'0' * 12}.zip")
    broken.write_bytes(good.read_bytes()[:-300])
    (folder / GPU / "notes.md").write_text("hello")
    changed = folder / GPU / "changed.zip"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(changed, "w") as new:
        for each in old.namelist():
            content = old.read(each)
            new.writestr(each, content.replace(b"CC0-1.0", b"GPL-3.0") if each == "manifest.json" else content)
    target = good.with_name(f"{good.name[:-16]}{'1' * 12}.zip")
    changed.rename(target)
    bad = {name.partition("/")[2]: reason for name, reason in check_place(Folder(folder)).bad.items()}
    assert set(bad) == {replayed.name, renamed.name, copied.name, broken.name, "notes.md", target.name}
    assert "repeat a recording" in bad[replayed.name]
    assert f"its name has to be {GPU}/{good.name}" in bad[renamed.name]
    assert f"3 rows of it are in {GPU}/{good.name} already" in bad[copied.name]
    assert "not a bundle" in bad[broken.name]
    assert "its name is not" in bad["notes.md"]
    assert "signature" in bad[target.name]
    assert not any(str(tmp_path) in reason for reason in bad.values())
    done = run_here("db", "verify", folder, "--list", home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("refused: ") == 6
    assert "1 bundle, 6 refused" in done.stdout
    assert json.loads((folder / "index.json").read_text()) == {"names": [f"{GPU}/{good.name}"]}
    left = reader.pull(folder).left
    assert {row["session"] for row in reader.pulled()} >= {"monday"}
    assert any(broken.name in line for line in left)


def test_contributed_datasets_pass_the_check():
    assert check_place(Folder(ROOT / "datasets/contributed")).bad == {}
