"""`kernrec db push`, `pull`, `withdraw` and `trust`, as two people use them."""

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
    assert "device_uuid_hash leaves in another form in 1 measurement" in listed
    assert f"nothing was pushed to {team}" in listed
    assert f"--licence is missing: what those who pull from {team} may" in ask(alice, "db", "push", team, status=2)
    assert not any(folder.iterdir())
    words = ("--licence", "internal use at ACME")
    pushed = ask(alice, "db", "push", team, *words)
    assert f"1 measurement pushed to {team}, licence internal use at ACME" in pushed
    assert ask(alice, "db", "push", team) == f"{team} lacks none of these measurements\n"  # the licence is known
    assert ask(bob, "db", "pull", team) == f"{team}: 0 new measurements\n"
    assert ask(bob, "db", "trust", key, "alice").startswith(f"{key}: trusted as alice")
    assert ask(bob, "db", "pull", team) == f"{team}: 1 new measurement\n"
    query = ("recommend", "--op", "matmul", "--gpu", "h200", "--shape", SHAPE, "--objective", "latency")
    (first, *_) = json.loads(ask(bob, *query, "--json"))["choices"]
    assert (first["source"], first["database"], first["latency_s"]) == ("measured", "pulled", latency_s)
    assert first["signed_by"] == [{"name": "alice", "key": key}]
    assert "1 session 2026-03-01, pulled (alice)" in ask(bob, *query)
    about = json.loads(ask(bob, "db", "info", "--json"))
    assert [(row["gpu"], row["rows"], row["signers"]) for row in about["pulled"]] == [("h200-sxm", 1, ["alice"])]
    assert about["bundles"][0]["licences"] == ["internal use at ACME"]
    assert "pulled or pushed, by signer" in ask(bob, "db", "info")
    assert "say which measurements" in ask(alice, "db", "withdraw", status=2)
    monday = ("--row", "monday")
    assert f"nothing was withdrawn from {team}" in ask(alice, "db", "withdraw", team, *monday, "--dry-run")
    assert "1 measurement withdrawn" in ask(alice, "db", "withdraw", team, *monday, "--reason", "hot")
    assert json.loads(ask(alice, *query, "--json"))["choices"][0]["source"] == "predicted"
    assert json.loads(ask(alice, "db", "info", "--json"))["withdrawn"] == 1
    assert ask(bob, "db", "pull", team) == f"{team}: 0 new measurements, 1 no longer answer\n"
    assert json.loads(ask(bob, *query, "--json"))["choices"][0]["source"] == "predicted"
    assert ask(bob, "db", "trust", "alice", "--remove") == f"{key}: not trusted any more\n"
    assert any(folder.iterdir())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("pull ftp://x/y", "a folder, or a URL of s3://"),
        ("pull https://me:secret@x/y", "no user and password"),
        ("pull s3://", "is not a URL such as s3://"),
        ("pull s3:/team/x", "is not a URL such as s3://"),
        (["pull", ""], "the place is empty"),
        ("pull nowhere", "there is no folder"),
        ("pull", "PLACE is missing; expected: folder, or a URL"),
        ("push", "PLACE is missing; expected: folder, or a URL"),
        ("verify nowhere", "there is no folder"),
        ("verify --list", "--list goes with a place"),
        ("verify x --remove", "--db and --remove are about a database"),
        (["trust", "5f" * 32, ""], "name '': letters, digits"),
        ("trust me", "is not a public key"),
        ("trust me --remove", "unknown key 'me'"),
        ("trust me --own", "--own prints your own key"),
        ("import missing.zip", "missing.zip cannot be read: there is no such file"),
        ("withdraw --row monday", "there is no database at"),
        ("info --gpu t4", "--gpu was removed; use `kernrec collect --strategy refine"),
        ("remote add team /tmp", "`kernrec db remote` was removed; use `kernrec db push PLACE`"),
        ("sync", "`kernrec db pull PLACE`, then `kernrec db push PLACE`"),
        ("log", "use `kernrec db info`, which lists"),
        ("index x", "use `kernrec db verify PLACE`"),
        ("coverage", "use `kernrec db info --coverage`"),
        ("key", "use `kernrec db trust --own`"),
        ("sign x.zip", "use `kernrec db export --bundle FILE`"),
        ("retract --merged", "use `kernrec db withdraw`"),
        ("export --format t4", "--format was removed: T4 is the only format"),
    ],
)
def test_misuse_is_one_line(tmp_path: Path, ask: Ask, command: str | list[str], says: str) -> None:
    line = ask(Person(tmp_path), "db", *(command.split() if isinstance(command, str) else command), status=2)
    assert says in line
    assert line.count("\n") == 1
    assert "secret" not in line


def test_a_bundle_is_taken_from_whom_one_trusts(tmp_path: Path, ask: Ask) -> None:
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
        assert line == "kernrec: --licence: one line of at most 200 characters is expected\n"
    assert not any(team.iterdir())
    assert "--licence is missing: what those who get the" in ask(alice, "db", "export", "--bundle", file, status=2)
    ask(alice, "db", "export", "--bundle", file, "--licence", "CC0-1.0")
    assert f"signed by an unknown key, {key}" in ask(bob, "db", "import", file, status=2)
    assert not bob.database.exists()
    ask(bob, "db", "trust", key, "alice")
    assert "3 new rows, licence CC0-1.0, signed by alice" in ask(bob, "db", "import", file)
