"""`kernrec db remote`, `push`, `pull`, `log`, `key`, `trust` and `retract`, as two people use them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.cli.app import run
from kernrec.kernel import find_kernel
from tests.helpers.sharing import Person, measurement

SHAPE = "m=64,n=32,k=16"
Ask = Callable[..., str]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command of somebody and gives what it printed; status 0 is expected, or the one given."""

    def ask(person: Person, *arguments: str, status: int = 0) -> str:
        with person.at_work():
            assert run(arguments) == status
        seen = capsys.readouterr()
        return seen.out if status == 0 else seen.err

    return ask


@pytest.mark.slow
def test_two_people_share_a_folder(tmp_path: Path, ask: Ask) -> None:
    alice, bob = Person(tmp_path / "alice"), Person(tmp_path / "bob")
    (team := tmp_path / "team").mkdir()
    import kernrec
    from kernrec.op import find_op

    best = kernrec.recommend("matmul", "h200", m=64, n=32, k=16, objective="latency").best
    problem = find_op("matmul").problem(m=64, n=32, k=16)
    latency_s = 0.9 * best.latency_s.value
    hash_ = find_kernel(best.kernel.name).hash
    config = {"kernel": best.kernel.name, "kernel_hash": hash_, "config": dict(best.config), "problem": problem}
    alice.measure([measurement(position=0, latency_s=latency_s, **config)])
    for person in (alice, bob):
        assert ask(person, "db", "remote", "add", "team", str(team)) == f"team: {team}\n"
    assert "there is no key" in ask(alice, "db", "push", status=2)
    key = ask(alice, "db", "key").strip()
    assert ask(alice, "db", "key").strip() == key
    assert (alice.home / "config/kernrec/key").stat().st_mode & 0o077 == 0
    listed = ask(alice, "db", "push", "--dry-run")
    assert listed.splitlines()[0] == "1 config, 1 problem, 0 profiles, 1 measurement, 0 retractions"
    assert "device_uuid_hash leaves in another form in 1 measurement" in listed
    assert f"nothing was pushed to team ({team})" in listed
    assert not any(team.iterdir())
    assert "--licence is missing: what those who pull from team may do" in ask(alice, "db", "push", status=2)
    assert "--licence is missing" in ask(alice, "db", "sync", status=2)
    assert not any(team.iterdir())
    words = ("--licence", "internal use at ACME")
    assert "1 measurement pushed to team, licence internal use at ACME" in ask(alice, "db", "push", *words)
    assert ask(bob, "db", "pull") == "team: 0 new measurements\n"
    assert ask(bob, "db", "trust", key, "--name", "alice").startswith(f"{key}: trusted as alice")
    assert ask(bob, "db", "pull") == "team: 1 new measurement\n"
    query = ("recommend", "--op", "matmul", "--gpu", "h200", "--shape", SHAPE, "--objective", "latency")
    (first, *_) = json.loads(ask(bob, *query, "--json"))["choices"]
    assert (first["source"], first["database"], first["latency_s"]) == ("measured", "team", latency_s)
    assert first["signed_by"] == [{"name": "alice", "key": key}]
    assert "1 session 2026-03-01, team (alice)" in ask(bob, *query)
    (row,) = json.loads(ask(bob, "db", "log", "--json"))
    assert (row["signer"], row["measurements"], row["gpus"], row["state"]) == ("alice", 1, ["h200-sxm"], "answers")
    assert "say which measurements" in ask(alice, "db", "retract", status=2)
    assert "nothing was retracted from team" in ask(alice, "db", "retract", "team", "--session", "monday", "--dry-run")
    assert "1 measurement retracted" in ask(alice, "db", "retract", "team", "--session", "monday", "--reason", "hot")
    assert json.loads(ask(alice, *query, "--json"))["choices"][0]["source"] == "prior"
    assert json.loads(ask(alice, "db", "info", "--json"))["retracted"] == 1
    (own, *_) = json.loads(ask(alice, "db", "log", "--json"))
    assert (own["remote"], own["signer"], own["measurements"], own["reason"]) == ("own", "you", -1, "hot")
    assert ask(bob, "db", "pull", "team") == "team: 0 new measurements, 1 retracted\n"
    title, heading, _, push, retraction = ask(bob, "db", "log").splitlines()
    assert (title, heading.split()) == ("team", ["when", "signer", "measurements", "state", "gpus", "ops", "reason"])
    assert push.split()[2:] == ["alice", "1", "retracted", "h200-sxm", "matmul"]
    assert retraction.split()[2:] == ["alice", "-1", "retraction", "hot"]
    assert retraction.index("hot") == heading.index("reason")
    assert json.loads(ask(bob, *query, "--json"))["choices"][0]["source"] == "prior"
    assert ask(bob, "db", "trust", "alice", "--remove") == f"{key}: not trusted any more\n"
    assert (
        ask(bob, "db", "remote", "list", "--json")
        == json.dumps([{"remote": "team", "measurements": 0, "url": str(team)}], indent=2) + "\n"
    )
    assert ask(bob, "db", "remote", "remove", "team") == "team: removed\n"
    assert any(team.iterdir())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("remote add Team! /tmp", "cannot be the name of a remote"),
        ("remote add own /tmp", "cannot be the name of a remote"),
        ("remote add team ftp://x/y", "a folder, or a URL of s3://"),
        ("remote add team https://me:secret@x/y", "no user and password"),
        ("remote add team s3://", "is not a URL such as s3://"),
        ("remote add team s3:/team/x", "is not a URL such as s3://"),
        (["remote", "add", "team", ""], "the place of a remote is empty"),
        (["trust", "5f" * 32, "--name", ""], "--name '': letters, digits"),
        ("remote remove team", "unknown remote 'team'"),
        ("push", "there are no remotes"),
        ("pull", "there are no remotes"),
        ("trust me", "is not a public key"),
        ("trust --name me", "name the key"),
        ("trust me --remove", "unknown key 'me'"),
        ("sign missing.zip", "there is no key"),
        ("import missing.zip", "missing.zip cannot be read: there is no such file"),
        ("retract --session monday", "there is no database at"),
    ],
)
def test_misuse_is_one_line(tmp_path: Path, ask: Ask, command: str | list[str], says: str) -> None:
    line = ask(Person(tmp_path), "db", *(command.split() if isinstance(command, str) else command), status=2)
    assert says in line
    assert line.count("\n") == 1
    assert "secret" not in line


def test_a_remote_that_cannot_be_reached_keeps_nobody_from_the_others(tmp_path: Path, ask: Ask) -> None:
    alice, bob, team = Person(tmp_path / "alice"), Person(tmp_path / "bob"), tmp_path / "team"
    team.mkdir()
    alice.measure([measurement(position=0)])
    alice.push(team)
    for name in ("first", "team", "last"):
        ask(bob, "db", "remote", "add", name, str(tmp_path / name))
    lines = ask(bob, "db", "pull", "--untrusted", status=2).splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        f"note: there is no folder {tmp_path / 'first'}",
        f"kernrec: there is no folder {tmp_path / 'last'}",
    ]
    pulled = json.loads(ask(bob, "db", "info", "--json"))["pulled"]
    assert [(row["gpu"], row["measurements"]) for row in pulled["team"]] == [("h200-sxm", 1)]
    assert "team, pulled or pushed: 1 measurement of 1 GPU\n" in ask(bob, "db", "info")
    (_, of_team, _) = json.loads(ask(bob, "db", "remote", "list", "--json"))
    assert (of_team["remote"], of_team["measurements"]) == ("team", 1)


def test_a_bundle_is_taken_from_whom_one_trusts(tmp_path: Path, ask: Ask) -> None:
    alice, bob = Person(tmp_path / "alice"), Person(tmp_path / "bob")
    alice.measure([measurement(position=0)])
    file = str(tmp_path / "rows.zip")
    nowhere = str(tmp_path / "nowhere" / "rows.zip")
    refused = ask(alice, "db", "export", "--bundle", nowhere, "--licence", "CC0-1.0", status=2)
    assert f"{nowhere} cannot be written: there is no such folder" in refused
    for place in (("export", "--bundle", file), ("push", "team")):
        if place[0] == "push":
            (tmp_path / "team").mkdir()
            ask(alice, "db", "remote", "add", "team", str(tmp_path / "team"))
            alice.key()
        line = ask(alice, "db", *place, "--licence", "x" * 201, status=2)
        assert line == "kernrec: --licence: one line of at most 200 characters is expected\n"
    assert not any((tmp_path / "team").iterdir())
    assert f"there is no {file}" in ask(alice, "db", "sign", file, status=2)
    assert "--licence is missing: what those who get the" in ask(alice, "db", "export", "--bundle", file, status=2)
    ask(alice, "db", "export", "--bundle", file, "--licence", "CC0-1.0")
    assert "is not signed; nothing was taken" in ask(bob, "db", "import", file, status=2)
    assert not bob.database.exists()
    key = ask(alice, "db", "key").strip()
    assert ask(alice, "db", "sign", file) == f"{file}: signed by {key}\n"
    assert f"signed by an unknown key, {key}" in ask(bob, "db", "import", file, status=2)
    bob.key()
    assert f"is signed already, by {key}" in ask(bob, "db", "sign", file, status=2)
    ask(bob, "db", "trust", key, "--name", "alice")
    assert "3 new rows, licence CC0-1.0, signed by alice" in ask(bob, "db", "import", file)
