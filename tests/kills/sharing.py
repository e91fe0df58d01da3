"""Kill `kernrec db push` and `kernrec db pull` at random moments, and count lost, doubled and partial rows. After each
kill, readers of the shared folder and the database of pulled rows must see only whole bundles. Between pulls, Alice
sometimes withdraws a bundle. At the end, one push and one pull finish, and the rows are counted."""

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

from kernrec.errors import KernrecError
from kernrec.store import Database
from kernrec.store.share.bundle import fetch
from kernrec.store.share.place import BUNDLE, Folder
from kernrec.store.share.pull import placed_bundle
from tests.helpers.sharing import Person, measurements
from tests.kills.forked_command import ForkedCommand

_LICENCE = ("--licence", "CC0-1.0")


def kill_sharing(folder: Path, command: str, kills: int, rows: int, seed: int) -> Counter[str]:
    """Kill pushes or pulls (`command`) of `rows` measurements in total. `folder` has two users and the index.

    Returns:
        Counts: `kills` before the command ended, `lost` rows that never arrived, `doubled` rows, `halved`: kills after
        which others saw a part of a push, and `unreadable`: failed reads of the pulled rows after a kill.
    """
    draw, place = random.Random(seed), folder / "team"
    place.mkdir()
    alice, bob = Person(folder / "alice"), Person(folder / "bob")
    for person in (alice, bob):
        person.home.mkdir()
    _run(bob, "trust", _run(alice, "trust", "--own").strip(), "alice")
    each = max(1, rows // kills)
    counts: Counter[str] = Counter()
    withdrawn: set[str] = set()
    pulled: set[str] = set()
    length_s = 1.0
    for number in range(kills):
        alice.measure(measurements(f"s{number}", each))
        if command == "pull":
            _run(alice, "push", str(place), *_LICENCE)
            if number % 4 == 3:
                _run(alice, "withdraw", str(place), "--row", f"s{number - 1}")
                withdrawn.add(f"s{number - 1}")
        started_s = time.monotonic()
        words = (str(place), *(_LICENCE if command == "push" else ()))
        process = ForkedCommand(["db", command, *words], _variables(alice if command == "push" else bob))
        process.wait(draw.random() * length_s)
        if process.status is not None:
            length_s = 0.8 * length_s + 0.2 * (time.monotonic() - started_s)
        else:
            length_s = min(8.0, 1.1 * length_s)
        counts["kills"] += process.kill()
        counts["halved"] += _half(place, folder)
        if command == "pull":
            try:
                there = _sessions(bob)
            except KernrecError:
                counts["unreadable"] += 1
                continue
            counts["halved"] += any(count != each for count in there.values())
            counts["lost"] += len(pulled - withdrawn - there.keys())  # pulled rows stay
            pulled = set(there)
    _run(alice, "push", str(place), *_LICENCE)
    _run(bob, "pull", str(place))
    there = _sessions(bob)
    shared = _shared(place, folder)
    counts["lost"] += each * (kills - len(withdrawn)) - sum(there.values())
    counts["doubled"] = max(0, sum(there.values()) - each * len(there)) + max(0, shared - each * kills)
    counts["withdrawn"] = len(withdrawn) * each
    counts["lost"] += sum(there[session] for session in withdrawn)
    return counts


def _variables(person: Person) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "KERNREC_DB"} | person.variables


def _run(person: Person, *arguments: str) -> str:
    output = person.home / "printed"
    ForkedCommand(["db", *arguments], _variables(person), output).succeed()
    return output.read_text(encoding="utf-8")


def _bundles(place: Path) -> list[str]:
    return [name for name in Folder(place).names() if BUNDLE.fullmatch(name)]


def _shared(place: Path, folder: Path) -> int:
    read = (placed_bundle(Folder(place), name, folder) for name in _bundles(place))
    return sum(bundle.manifest.rows["measurement"] for bundle in read)


def _half(place: Path, folder: Path) -> bool:
    for name in _bundles(place):
        try:
            bundle = placed_bundle(Folder(place), name, folder)
            (scratch := folder / "segments").mkdir()
            for number, segment in enumerate(bundle.manifest.segments):
                fetch(bundle.place, segment, scratch / str(number))
        except KernrecError:
            return True
        finally:
            shutil.rmtree(folder / "segments", ignore_errors=True)
    return False


def _sessions(person: Person) -> Counter[str]:
    path = person.database.with_name("kernrec.pulled.duckdb")
    if not path.exists():
        return Counter()
    with Database.open_checked(path) as database:
        return Counter(dict(database.query("SELECT session, count(*) FROM db.measurement GROUP BY 1")))
