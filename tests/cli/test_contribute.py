"""Test `kernrec contribute` on a simulated GPU: the measurement plan, and the bundle to send."""

import getpass
import socket
import zipfile
from pathlib import Path

import duckdb
import pytest

from kernrec import paths
from kernrec.kernel.fixed_part import fixed_part
from kernrec.store import Database
from kernrec.store.share.bundle import read_bundle
from kernrec.store.share.manifest import bundle_name
from kernrec.store.share.place import place_at
from tests.helpers.command import run_here
from tests.helpers.sharing import measured_rows
from tests.helpers.simulated_library import GPU, UUID_HASH, in_this_machine

DATABASE = ".local/share/kernrec/contributed.duckdb"


def contribute(home: Path, *arguments: object) -> tuple[int, str, str]:
    with in_this_machine():
        done = run_here("contribute", *arguments, home=home, cwd=home)
    return done.returncode, done.stdout, done.stderr


def bundles(home: Path) -> list[Path]:
    return sorted((home / "contributed").glob("*/*.zip"))


@pytest.fixture(scope="module")
def contributed(tmp_path_factory):
    """Run `kernrec contribute` once, and return its home directory and output."""
    home = tmp_path_factory.mktemp("somebody-at-home")
    status, out, err = contribute(home, "--budget", "20configs")
    assert status == 0, err
    return home, out


@pytest.mark.every(2)
def test_contributed_bundle_is_signed_and_named_like_a_pushed_one(contributed):
    home, out = contributed
    (file,) = bundles(home)
    bundle = read_bundle(place_at(file))
    assert bundle.manifest.owner
    assert bundle_name(bundle.manifest) == f"{GPU}/{file.name}"
    assert f"written to contributed/{GPU}/{file.name}, {file.stat().st_size:,} bytes, licence CC0-1.0" in out
    assert "Nothing has left this machine" in out


def test_contribute_first_measures_configs_that_every_user_measures(contributed):
    home, _ = contributed
    rows = sorted(measured_rows(home / DATABASE), key=lambda row: str(row["measured_at"]))
    fixed = {each.kernel_name for each in fixed_part()}
    assert {row["kernel"] for row in rows[:5]} <= fixed
    assert {row["kernel"] for row in rows} - fixed
    assert len({row["session"] for row in rows}) == 1
    assert sum(row["energy_j"] is not None for row in rows) >= len(fixed_part())


def test_bundle_contains_no_user_machine_or_folder_names(contributed, tmp_path):
    home, _ = contributed
    (file,) = bundles(home)
    private = {str(home), home.name, str(paths.cache()), "GPU-simulated", UUID_HASH}
    private |= {name for name in (getpass.getuser(), socket.gethostname()) if len(name) > 2 and name != "root"}
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    texts = [file.read_bytes()]
    for part in tmp_path.rglob("*"):
        if part.is_file():
            texts.append(part.read_bytes())
        if part.suffix == ".parquet":  # compressed Parquet would hide private names
            texts += [repr(row).encode() for row in duckdb.sql(f"FROM read_parquet('{part}')").fetchall()]
    assert not {name for name in private for text in texts if name.encode() in text}


@pytest.mark.every(3)
def test_second_contribute_run_bundles_only_new_rows(contributed):
    home, _ = contributed
    before = bundles(home)
    assert "contributed has all measurements of" in contribute(home, "--budget", "0m")[2]
    status, _, err = contribute(home, "--budget", "8configs")
    assert status == 0, err
    [new] = set(bundles(home)) - set(before)
    bundle = read_bundle(place_at(new))
    assert 0 < bundle.manifest.rows["measurement"] < len(measured_rows(home / DATABASE))


@pytest.mark.every(3)
def test_interrupted_run_loses_no_rows(tmp_path, monkeypatch):
    from kernrec.cli import collect

    calls = iter(range(10**6))
    monkeypatch.setattr(collect.Stop, "__call__", lambda stop: next(calls) > 40)
    status, out, err = contribute(tmp_path, "--budget", "60configs")
    assert status == 130, err
    assert "no bundle was written" in out
    assert not bundles(tmp_path)
    measured = len(measured_rows(tmp_path / DATABASE))
    assert measured > 0
    status, out, err = contribute(tmp_path, "--budget", "0m")
    assert status == 0, err
    (file,) = bundles(tmp_path)
    assert read_bundle(place_at(file)).manifest.rows["measurement"] == measured


@pytest.mark.parametrize(("arguments", "message"), [
    (("--out", "bundle.tar"), "--out was removed: kernrec writes the bundle to the folder contributed"),
    (("--budget", "ten"), "--budget 'ten'"), (("--budget", "0m"), "there is no database at"),
    (("--budget", "10ms"), "is shorter than one measurement"),
])  # fmt: skip
def test_contribute_refuses_invalid_arguments_in_one_line(tmp_path, arguments, message):
    status, _, err = contribute(tmp_path, *arguments)
    assert status == 2
    assert message in err.splitlines()[-1]
    assert not bundles(tmp_path)


def test_contribute_refuses_zero_budget_and_an_unusable_folder(tmp_path):
    status, _, err = contribute(tmp_path, "--budget", "0m")
    assert (status, err.splitlines()[-1].endswith("give a --budget")) == (2, True)
    assert not (tmp_path / "contributed").exists()
    (tmp_path / DATABASE).parent.mkdir(parents=True, exist_ok=True)
    with Database.open(tmp_path / DATABASE, read_only=False, create=True):
        (tmp_path / "contributed").touch()
    status, _, err = contribute(tmp_path, "--budget", "0m")
    assert (status, "contributed cannot be created" in err.splitlines()[-1]) == (2, True)
