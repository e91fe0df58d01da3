"""`kill -9` of `kernrec db push` and `kernrec db pull`, from a remote and from an index.

A remote is a folder. A push is killed once a random number of its files is there, and a random moment later; a pull,
once it has written a random number of files. After each kill whoever reads the remote has to see whole pushes alone:
signed manifests whose segments are all there and have the content that their name says. What was pulled has to be whole
pushes, too. At the end a last push and a last pull run to their end, and the rows are counted.
"""

import hashlib
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.keys import Signer, key_file
from kernrec.store.measurement import Measurement
from kernrec.store.share import Folder
from kernrec.store.share.bundle import read_signed
from kernrec.store.share.contribution import add_pending, write_contribution
from kernrec.store.share.manifest import Manifest, parse_document
from tests.helpers.sharing import GPU, Person, measurements
from tests.kills.forked_command import ForkedCommand

_MOST_FILES = 7
"""That a push writes: three segments, a manifest, its signature, the index; one more: it has ended."""
_LATER_S = 0.05
_LICENCE = ("--licence", "CC0-1.0")
_CONTRIBUTED = 400
"""Rows of a bundle of an index."""


def kill_sharing(folder: Path, command: str, kills: int, rows: int, seed: int) -> Counter[str]:
    """Kill pushes or pulls (`command`) of so many rows together, in a folder for two people and the remote.

    Returns:
        `kills` of commands before they ended; rows that never arrived (`lost`) or are there twice (`doubled`);
        `halved`, kills after which a part of a push was visible, or was pulled.
    """
    draw, remote = random.Random(seed), folder / "team"
    remote.mkdir()
    alice, bob = _person(folder / "alice", remote), _person(folder / "bob", remote)
    _run(bob, "trust", _run(alice, "key").strip(), "--name", "alice")
    each = max(1, rows // kills)
    counts: Counter[str] = Counter()
    if command == "pull":
        for number in range(kills):
            _measure(alice, number, each)
            if number % 5 == 4 or number == kills - 1:
                _run(alice, "push", *_LICENCE)
    for number in range(kills):
        if command == "push":
            _measure(alice, number, each)
            watched, person = remote, alice
        else:
            watched, person = Path(bob["XDG_DATA_HOME"]), bob
            if _pulled(bob) == each * kills:
                shutil.rmtree(watched)
        process = ForkedCommand(["db", command, *(_LICENCE if command == "push" else ())], person)
        files = _files(watched) + draw.randint(0, _MOST_FILES)
        while process.status is None and _files(watched) < files:
            time.sleep(0.002)
        process.wait(draw.random() * _LATER_S)
        counts["kills"] += process.kill()
        counts["halved"] += _half(remote) or (command == "pull" and _pulled(bob) % each != 0)
    _run(alice, "push", *_LICENCE)
    _run(bob, "pull")
    with Database.open(_pulled_file(bob)) as database:
        there = Counter((row["session"], row["position"]) for row in database.rows("measurement"))
    logged = sum(manifest.rows["measurement"] for manifest in _manifests(remote))
    counts["lost"] = each * kills - len(there)
    counts["doubled"] = sum(there.values()) - len(there) + max(0, logged - each * kills)
    return counts


def kill_index(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill pulls from an index at random moments, each after its keeper has removed a bundle or put it back.

    Returns:
        `kills` of commands before they ended; answers `lost`, of bundles that were there all the time; `doubled`, rows
        that are there twice; `halved`, kills after which a part of a bundle answered; `unreadable`, after which the
        rows could not be read.
    """
    draw, index = random.Random(seed), folder / "index"
    index.mkdir()
    bundles = [_contributed(Person(folder / name), index, name) for name in ("ann", "ben", "cyd")]
    reader = _person(folder / "reader", index)
    started_s = time.monotonic()
    _run(reader, "pull", "--untrusted")
    length_s = time.monotonic() - started_s
    counts: Counter[str] = Counter()
    for _ in range(kills):
        moved = bundles[draw.randrange(1, len(bundles))]
        away = moved.with_suffix(".away")
        moved.rename(away) if moved.exists() else away.rename(moved)
        process = ForkedCommand(["db", "pull", "--untrusted"], reader)
        process.wait(draw.random() * length_s)
        counts["kills"] += process.kill()
        try:
            with Database.open_checked(_pulled_file(reader)) as database:
                rows = Counter(str(row["session"]) for row in database.rows("measurement"))
        except KernrecError:
            counts["unreadable"] += 1
            continue
        counts["lost"] += _CONTRIBUTED - min(_CONTRIBUTED, rows["ann"])
        counts["doubled"] += sum(max(0, count - _CONTRIBUTED) for count in rows.values())
        counts["halved"] += any(count % _CONTRIBUTED for count in rows.values())
    for bundle in bundles:
        if (away := bundle.with_suffix(".away")).exists():
            away.rename(bundle)
    _run(reader, "pull", "--untrusted")
    counts["lost"] += _CONTRIBUTED * len(bundles) - _pulled(reader)
    return counts


def _contributed(person: Person, index: Path, session: str) -> Path:
    """The bundle of a person in an index."""
    person.measure(measurements(session, _CONTRIBUTED))
    person.key()
    with person.at_work():
        add_pending(person.database, session)
        return write_contribution(person.database, GPU, Signer.of(key_file()), index, None).path


def _person(home: Path, remote: Path) -> dict[str, str]:
    """The environment of somebody who knows the remote."""
    folders = {"HOME": home, "XDG_DATA_HOME": home / "data", "XDG_CONFIG_HOME": home / "config"}
    folders |= {"XDG_CACHE_HOME": home / "cache"}
    person = os.environ | {name: str(path) for name, path in folders.items()}
    person.pop("KERNREC_DB", None)
    home.mkdir()
    _run(person, "remote", "add", "team", str(remote))
    return person


def _run(person: Mapping[str, str], *arguments: str) -> str:
    output = Path(person["HOME"]) / "printed"
    assert ForkedCommand(["db", *arguments], person, output).wait() == 0, f"kernrec db {' '.join(arguments)} failed"
    return output.read_text(encoding="utf-8")


def _measure(person: Mapping[str, str], session: int, count: int) -> None:
    problem = find_op("matmul").problem(m=1024, n=1024, k=1024)
    usual: dict[str, object] = {"gpu": "rtx3090", "kernel": "recorded", "kernel_hash": "0123456789abcdef"}
    usual |= {"problem": problem, "protocol_version": 1, "tier": "final", "session": f"s{session}", "block": 0}
    usual |= {"measured_at": "2026-01-01T00:00:00", "outcome": "ok", "latency_s": 1e-3}
    rows = [usual | {"position": i, "config": {"x": i}} for i in range(count)]
    path = Path(person["XDG_DATA_HOME"]) / "kernrec" / "kernrec.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(map(Measurement.from_columns, rows))


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))  # which folders that vanish meanwhile do not stop


def _manifests(remote: Path) -> list[Manifest]:
    place = Folder(remote)
    names = [name for name in place.names("manifests/") if name.endswith(".json")]
    documents = [read_signed(place, name, parse_document)[0] for name in names]
    return [document for document in documents if isinstance(document, Manifest)]


def _half(remote: Path) -> bool:
    """Whether something that is visible is not whole; a manifest without its signature raises an error."""
    segments = {segment for manifest in _manifests(remote) for segment in manifest.segments}
    files = {segment.sha256: remote / segment.name for segment in segments}
    return any(
        not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != name for name, path in files.items()
    )


def _pulled_file(person: Mapping[str, str]) -> Path:
    return Path(person["XDG_DATA_HOME"]) / "kernrec" / "remotes" / "team" / "rows.duckdb"


def _pulled(person: Mapping[str, str]) -> int:
    """Measurements that were pulled; a pull that was killed while it made the database has pulled none."""
    if not (path := _pulled_file(person)).exists():
        return 0
    with Database.open_checked(path, read_only=False, create=True) as database:
        return database.counts()["measurement"]
