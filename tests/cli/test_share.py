"""Test that two users can share measurements with `kernrec db push`, `pull`, `withdraw` and `trust`."""

import json

import pytest

from kernrec.cli.app import run
from kernrec.kernel import find_kernel
from tests.helpers.reading import reading_here
from tests.helpers.sharing import Person, measurement


@pytest.fixture
def ask(capsys):
    """Return a function that runs a person's command, checks its exit status, and returns its output or its errors."""

    def ask(person: Person, *arguments: str, status: int = 0) -> str:
        with person.at_work(), reading_here():
            assert run(arguments) == status
        seen = capsys.readouterr()
        return seen.out if status == 0 else seen.err

    return ask


@pytest.mark.every(4)
@pytest.mark.slow
def test_two_users_share_a_folder(tmp_path, ask):
    alice, bob = Person(tmp_path / "alice"), Person(tmp_path / "bob")
    (folder := tmp_path / "team").mkdir()
    team = str(folder)
    import kernrec
    from kernrec.op import find_op

    best = kernrec.recommend("matmul", "h200", m=64, n=32, k=16, objective="latency").best
    problem = find_op("matmul").problem(m=64, n=32, k=16)
    latency_s = 0.9 * best.latency_s.value
    hash_ = find_kernel(best.kernel.name).hash
    config = {"kernel": best.kernel.name, "kernel_hash": hash_, "config": dict(best.config), "problem": problem}
    alice.measure([measurement(position=0, latency_s=latency_s, **config)])
    key = ask(alice, "db", "trust", "--own").strip()
    assert ask(alice, "db", "trust", "--own").strip() == key
    assert (alice.home / "config/kernrec/key").stat().st_mode & 0o077 == 0
    listed = ask(alice, "db", "push", team, "--dry-run")
    assert listed.splitlines()[0] == "1 config, 1 problem, 0 profiles, 1 measurement, 0 retractions"
    assert f"nothing was pushed to {team}" in listed
    assert f"--licence is missing: what those who pull from {team} may" in ask(alice, "db", "push", team, status=2)
    assert not any(folder.iterdir())
    words = ("--licence", "internal use at ACME")
    pushed = ask(alice, "db", "push", team, *words)
    assert f"1 measurement pushed to {team}, licence internal use at ACME" in pushed
    assert ask(alice, "db", "push", team) == f"{team} already has all of these measurements\n"
    others = ask(alice, "db", "push", team, "--gpu", "a100", status=2)
    assert "kernrec.duckdb has no measurements on a100-sxm4-80gb to share" in others
    assert ask(bob, "db", "pull", team) == f"{team}: 0 new measurements\n"
    assert ask(bob, "db", "trust", key, "alice").startswith(f"{key}: trusted as alice")
    assert ask(bob, "db", "pull", team) == f"{team}: 1 new measurement\n"
    query = ("recommend", "--op", "matmul", "--gpu", "h200", "--shape", "m=64,n=32,k=16", "--objective", "latency")
    (first, *_) = json.loads(ask(bob, *query, "--json"))["recommendations"]
    assert (first["source"], first["database"], first["latency_s"]) == ("measured", "pulled", latency_s)
    assert first["signed_by"] == [{"name": "alice", "key": key}]
    assert "1 session 2026-03-01, pulled (alice)" in ask(bob, *query)
    about = json.loads(ask(bob, "db", "info", "--json"))
    assert [(row["gpu"], row["rows"], row["signers"]) for row in about["pulled"]] == [("h200-sxm", 1, ["alice"])]
    assert about["bundles"][0]["licences"] == ["internal use at ACME"]
    assert "pulled or pushed, by signer" in ask(bob, "db", "info")
    assert "name the measurements" in ask(alice, "db", "withdraw", status=2)
    monday = ("--row", "monday")
    assert f"nothing was withdrawn from {team}" in ask(alice, "db", "withdraw", team, *monday, "--dry-run")
    assert "1 measurement withdrawn" in ask(alice, "db", "withdraw", team, *monday, "--reason", "hot")
    assert json.loads(ask(alice, *query, "--json"))["recommendations"][0]["source"] == "predicted"
    assert json.loads(ask(alice, "db", "info", "--json"))["withdrawn"] == 1
    assert ask(bob, "db", "pull", team) == f"{team}: 0 new measurements, 1 no longer used\n"
    assert json.loads(ask(bob, *query, "--json"))["recommendations"][0]["source"] == "predicted"
    assert ask(bob, "db", "trust", "alice", "--remove") == f"{key}: no longer trusted\n"
    assert any(folder.iterdir())


def test_pull_accepts_bundles_only_from_trusted_keys(tmp_path, ask):
    alice, bob = Person(tmp_path / "alice"), Person(tmp_path / "bob")
    alice.measure([measurement(position=0)])
    key = alice.key()
    (team := tmp_path / "team").mkdir()
    file = str(tmp_path / "rows.zip")
    nowhere = str(tmp_path / "nowhere" / "rows.zip")
    refused = ask(alice, "db", "export", "--bundle", nowhere, "--licence", "CC0-1.0", status=2)
    assert f"{nowhere} cannot be written: there is no such folder" in refused
    for words in (("export", "--bundle", file), ("push", str(team))):
        line = ask(alice, "db", *words, "--licence", "x" * 201, status=2)
        assert line == "kernrec: --licence: expected one line of at most 200 visible characters\n"
    assert not any(team.iterdir())
    assert "--licence is missing: what those who get the" in ask(alice, "db", "export", "--bundle", file, status=2)
    ask(alice, "db", "export", "--bundle", file, "--licence", "CC0-1.0")
    assert f"signed by an unknown key, {key}" in ask(bob, "db", "import", file, status=2)
    assert not bob.database.exists()
    ask(bob, "db", "trust", key, "alice")
    assert "3 new rows, licence CC0-1.0, signed by alice" in ask(bob, "db", "import", file)
