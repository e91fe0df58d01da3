"""Check a whole place: pull all of its rows into a separate database with every key trusted, and inspect the result."""

from dataclasses import dataclass, field

from kernrec.store.card_scales import COLUMNS, CardScale, shown
from kernrec.store.coverage import contributed
from kernrec.store.database import Database
from kernrec.store.keys import signer_name
from kernrec.store.share.outgoing import likeness_hash
from kernrec.store.share.place import BUNDLE, WITHDRAWAL, Folder, Place, files_below
from kernrec.store.share.pull import PullReport, take_new
from kernrec.util.human import counted
from kernrec.util.scratch import scratch_folder


@dataclass
class PlaceReport:
    """Result of checking a place."""

    bundles: int = 0
    """Number of good bundles."""
    bad: dict[str, str] = field(default_factory=dict)
    """Reason for refusing a file, by its name."""
    rows: list[dict[str, object]] = field(default_factory=list)
    """Contents of the good bundles (`coverage.contributed`)."""
    cards: list[CardScale] = field(default_factory=list)
    """Scales of GPUs that can be compared with GPUs of two or more other people."""

    def unlike(self) -> list[str]:
        """Return a line for each GPU whose costs differ from those of its model."""
        lines = (shown(card, f"the {card.gpu} of {signer_name(card.contributor)}") for card in self.cards)
        return [line for line in lines if line is not None]


def check_place(place: Place) -> PlaceReport:
    """Check every bundle and withdrawal of a place, and list their contents.

    Raises:
        KernrecError: The place cannot be read.
    """
    names = place.names()
    with scratch_folder() as scratch:
        path = scratch / "pulled.duckdb"
        pulled = take_new(place, path, bool, names=names)
        report = PlaceReport(bad=_refused(place, pulled))
        if not path.exists():
            return report
        with Database.open(path) as database:
            report.bad |= _again(database)
            rows = database.query("SELECT name FROM db.bundle WHERE measurements > 0")
            report.bundles = sum(name not in report.bad for (name,) in rows)
            report.rows = contributed(database)
            cards = database.query(f"SELECT {COLUMNS} FROM db.card_scale ORDER BY ALL")
            report.cards = [CardScale(*row) for row in cards]
    return report


def _refused(place: Place, pulled: PullReport) -> dict[str, str]:
    bad = dict(pulled.refused)
    for line in pulled.missing:
        bad[line.rpartition(" has no ")[2]] = "it is listed but missing"
    if pulled.unknown:
        bad["manifests"] = "they are not signed"
    if isinstance(place, Folder):
        for file in files_below(place.path):
            name = file.relative_to(place.path).as_posix()
            plain = file.suffix == ".txt" or file.name == "README.md" or file.parent == place.path
            if not (plain or BUNDLE.fullmatch(name) or WITHDRAWAL.fullmatch(name)):
                bad[name] = "its name is not <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip"
    return bad


def _again(database: Database) -> dict[str, str]:
    likeness = likeness_hash(database.columns("measurement"))
    numbered = "SELECT name, row_number() OVER (ORDER BY created_at, name) AS number FROM db.bundle"
    shared = f"SELECT measurement_id, name, number FROM db.merged JOIN ({numbered}) AS bundle ON bundle = name"
    query = f"""
        WITH row AS MATERIALIZED (
            SELECT {likeness} AS likeness, name, number FROM db.measurement JOIN ({shared}) USING (measurement_id)
        )
        SELECT again.name, first.name, count(*) FROM row AS first JOIN row AS again USING (likeness)
        WHERE first.number < again.number GROUP BY 1, 2 ORDER BY 1, 3, 2 DESC
    """
    return {
        name: f"{counted(count, 'row')} of it {'is' if count == 1 else 'are'} in {first} already"
        for name, first, count in database.query(query)
    }
