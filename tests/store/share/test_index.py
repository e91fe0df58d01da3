"""Indexes: folders of contributed bundles, checked as a whole, pulled like remotes, and shown as a page."""

import functools
import http.server
import json
import shutil
import threading
import zipfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from kernrec.errors import UsageError
from kernrec.page.index_page import index_page
from kernrec.store.keys import Signer, key_file
from kernrec.store.measurement import Measurement
from kernrec.store.share.contribution import add_pending, write_contribution
from kernrec.store.share.index import IndexReport, check_index, write_list
from tests.helpers.command import run_here
from tests.helpers.object_servers import DATA_SET, Hub, served
from tests.helpers.sharing import GPU, Person, measurements

pytestmark = pytest.mark.usefixtures("read_here")


def contribute(person: Person, folder: Path, rows: Sequence[Measurement]) -> Path:
    """Their bundle in an index, made a minute after the one before: of two of one second their names, and so their
    random keys, would decide which is the first."""
    person.measure(rows)
    person.key()
    made_at = datetime(2026, 3, 2, 12, len(list(folder.glob("*/*.zip"))))
    with person.at_work(), patch("kernrec.store.share.outgoing.now", return_value=made_at.isoformat()):
        for session in {row.origin.session for row in rows}:
            add_pending(person.database, session)
        return write_contribution(person.database, GPU, Signer.of(key_file()), folder, None).path


@pytest.fixture
def people(tmp_path: Path) -> tuple[Person, Person, Person]:
    return Person(tmp_path / "ann"), Person(tmp_path / "ben"), Person(tmp_path / "cyd")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "contributed"
    path.mkdir()
    return path


def test_bundles_of_several_are_listed_and_pulled(people: tuple[Person, Person, Person], folder: Path) -> None:
    ann, ben, reader = people
    contribute(ann, folder, measurements("monday", 3))
    second = contribute(ben, folder, measurements("tuesday", 5, latency_s=1.5e-3))
    report = check_index(folder)
    assert report.bad == {}
    (row,) = report.rows
    assert (row["gpu"], row["kernel"], row["configs"], row["rows"]) == (GPU, "matmul_simt", 5, 8)
    assert len(row["signers"]) == 2  # type: ignore[arg-type]
    name = second.relative_to(folder).as_posix()
    assert report.scales[name] == (pytest.approx(1.5), 3)
    assert reader.pull(folder).measurements == 8
    assert reader.pull(folder).measurements == 0
    assert {row["session"] for row in reader.pulled()} == {"monday", "tuesday"}
    with pytest.raises(UsageError, match="is an index of bundles, to which nothing is pushed"):
        ben.push(folder)
    second.unlink()
    reader.pull(folder)
    assert {row["session"] for row in reader.pulled()} == {"monday"}, "a bundle that is taken back answers no more"


def test_a_place_without_a_name_is_told_how_to_get_one(folder: Path, tmp_path: Path) -> None:
    done = run_here("db", "pull", folder, home=tmp_path)
    assert done.returncode == 2
    assert f"`kernrec db remote add NAME {folder}` gives it a name" in done.stderr


def test_only_trusted_keys_are_pulled(people: tuple[Person, Person, Person], folder: Path) -> None:
    ann, ben, reader = people
    contribute(ann, folder, measurements("monday", 3))
    contribute(ben, folder, measurements("tuesday", 2))
    key = ann.key()
    with reader.at_work():
        from kernrec.store.keys import trust

        trust(key, "ann")
    report = reader.pull(folder, untrusted=False)
    assert report.measurements == 3
    (left,) = report.left
    assert "signed by an unknown key" in left
    assert reader.pull(folder).measurements == 2


def test_each_bad_bundle_gets_a_line(people: tuple[Person, Person, Person], folder: Path, tmp_path: Path) -> None:
    ann, ben, reader = people
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
    bad = {name.partition("/")[2]: reason for name, reason in check_index(folder).bad.items()}
    assert set(bad) == {replayed.name, renamed.name, copied.name, broken.name, "notes.md", target.name}
    assert "repeat a recording" in bad[replayed.name]
    assert f"its name has to be {GPU}/{good.name}" in bad[renamed.name]
    assert f"3 rows of it are in {GPU}/{good.name} already" in bad[copied.name]
    assert "not a bundle" in bad[broken.name]
    assert "its name is not" in bad["notes.md"]
    assert "signature" in bad[target.name]
    assert not any(str(tmp_path) in reason for reason in bad.values())
    done = run_here("db", "index", folder, "--html", tmp_path / "index.html", "--list", home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("refused: ") == 6
    assert "1 bundle, 6 refused" in done.stdout
    assert json.loads((folder / "index.json").read_text()) == {"names": [f"{GPU}/{good.name}"]}
    left = reader.pull(folder).left
    assert {row["session"] for row in reader.pulled()} >= {"monday"}
    assert any(broken.name in line for line in left)


def test_a_list_of_bundles_is_what_a_web_server_needs(people: tuple[Person, Person, Person], folder: Path) -> None:
    pytest.importorskip("obstore")
    ann, _, reader = people
    contribute(ann, folder, measurements("monday", 3))
    assert write_list(folder, ()) == 1
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert reader.pull(f"http://127.0.0.1:{server.server_port}").measurements == 3
        server.shutdown()


def test_an_index_in_a_data_set_of_the_hub_is_pulled(
    people: tuple[Person, Person, Person], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    ann, _, reader = people
    file = contribute(ann, folder, measurements("monday", 3))
    with served(Hub) as url:
        system = hub.HfFileSystem(endpoint=url, token="x", skip_instance_cache=True)
        system._api.upload_file(
            path_or_fileobj=str(file),
            path_in_repo=file.relative_to(folder).as_posix(),
            repo_id=DATA_SET.removeprefix("datasets/"),
            repo_type="dataset",
        )
        monkeypatch.setattr(hub, "HfFileSystem", lambda: system)
        report = reader.pull(f"hf://{DATA_SET}")
    assert (report.measurements, report.left) == (3, [])
    assert {row["session"] for row in reader.pulled()} == {"monday"}


def test_what_physics_forbids_is_refused_though_it_is_signed(
    people: tuple[Person, Person, Person], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends it took out the check of their own program."""
    ann, ben, reader = people
    contribute(ann, folder, measurements("monday", 3))
    monkeypatch.setattr("kernrec.store.share.contribution.check_own_segments", lambda files, title: None)
    contribute(ben, folder, measurements("tuesday", 1, latency_s=1e-12))
    contribute(ben, folder, measurements("wednesday", 1, energy_j=50.0, power_w=50e3, energy_method="nvml"))
    report = check_index(folder)
    assert len(report.bad) == 2
    assert [row["rows"] for row in report.rows] == [3]
    reasons = " ".join(report.bad.values())
    assert "have a latency of 1e-12 s" in reasons
    assert "have a power_w that no h200-sxm has" in reasons
    assert reader.pull(folder).measurements == 3


def test_the_page_escapes_what_bundles_say_and_has_no_script() -> None:
    row = {"gpu": GPU, "op": "matmul", "kernel": "<script>alert(1)</script>", "problems": 1, "configs": 2}
    report = IndexReport(
        2, {"x/<b>.zip": "its name is <i>"}, [row | {"rows": 12345, "energies": 0, "signers": ["<u>"]}]
    )
    page = index_page(report)
    assert "&lt;script&gt;alert(1)" in page
    assert "12,345" in page
    assert not any(tag in page for tag in ("<script", "<b>", "<i>", "<u>"))
    assert "default-src 'none'" in page


def test_the_index_of_the_project_is_good() -> None:
    from tests.helpers.paths import ROOT

    assert check_index(ROOT / "datasets/contributed").bad == {}


@pytest.fixture
def indexed(people: tuple[Person, Person, Person], folder: Path) -> tuple[Person, list[Path]]:
    """A reader who has pulled the bundles of two people, of 3 and 5 rows."""
    ann, ben, reader = people
    bundles = [contribute(ann, folder, measurements("monday", 3)), contribute(ben, folder, measurements("tuesday", 5))]
    assert reader.pull(folder).measurements == 8
    return reader, bundles


def test_a_pull_says_how_many_rows_no_longer_answer(indexed: tuple[Person, list[Path]], folder: Path) -> None:
    reader, (_, second) = indexed
    second.unlink()
    report = reader.pull(folder)
    assert (report.measurements, report.gone) == (0, 5)
    assert reader.pull(folder).gone == 0


def test_an_index_that_lists_nothing_for_a_moment_costs_no_answer(
    indexed: tuple[Person, list[Path]], folder: Path
) -> None:
    """A pull ended with status 0, and nothing was left."""
    reader, bundles = indexed
    for bundle in bundles:
        bundle.rename(bundle.with_suffix(".away"))
    with pytest.raises(UsageError, match="lists no bundle, and 2 were pulled from it: they stay"):
        reader.pull(folder)
    assert len(reader.pulled()) == 8
    for bundle in bundles:
        bundle.with_suffix(".away").rename(bundle)
    assert reader.pull(folder).measurements == 0


def test_a_bundle_that_cannot_be_read_costs_no_answer(indexed: tuple[Person, list[Path]], folder: Path) -> None:
    reader, (first, second) = indexed
    second.unlink()
    content = first.read_bytes()
    first.write_bytes(content[:-300])
    report = reader.pull(folder)
    assert any(
        "1 bundle, whose rows still answer, because 1 of the others cannot be read now" in x for x in report.left
    )
    assert len(reader.pulled()) == 8
    first.write_bytes(content)
    assert reader.pull(folder).gone == 5
    assert len(reader.pulled()) == 3


def test_a_pull_that_ends_while_it_pulls_again_costs_no_answer(
    indexed: tuple[Person, list[Path]], folder: Path
) -> None:
    """Every row was deleted before the first was fetched: 8 of 8 kills lost all answers of the index."""
    reader, (_, second) = indexed
    second.unlink()
    with (
        patch("kernrec.store.share.pull.replace_file", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        reader.pull(folder)
    assert len(reader.pulled()) == 8
    assert reader.pull(folder).gone == 5
