"""Retractions in a database: withdrawn measurements no longer answer, and stay in the log.

A retraction is a row of the table `retraction` that names a measurement by its key and is signed by who withdraws it.
A key is a hash of all columns, also of those that leave in another form (`kernrec.store.share.privacy`): only somebody
who has a row can name it. A merge adds the retractions of others if their signer is trusted, and names the rest in a
note. A retraction without a signature holds only for its database: its user has no key, or the signature is
that of a withdrawal at a place (`kernrec.store.share.withdraw`).
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import Signer, fits, own_key, signer_name, trusted
from kernrec.store.measurement_log import RETRACTED
from kernrec.store.rows import Row, canonical_json
from kernrec.util.human import counted

_SIGNED = ("measurement_id", "reason", "signer", "retracted_at")
_BATCH = 1000


def retraction_rows(keys: Iterable[str], reason: str, signer: Signer | None) -> list[Row]:
    """Rows of the table `retraction` that take the measurements of these keys back now.

    signer: who takes them back; None: the rows hold for this database alone, others do not believe them.
    """
    moment = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    rows: list[Row] = []
    for key in keys:
        row: dict[str, object] = {"measurement_id": key, "reason": reason, "retracted_at": moment}
        row["signer"] = signer.key if signer else ""
        rows.append(row | {"signature": signer.signature(_signed(row)) if signer else ""})
    return rows


def leave_unbelieved(database: Database, folder: Path) -> list[str]:
    """Take those retractions out of a stranger's rows that are of nobody whom the user trusts.

    The rows are `<table>.parquet` files in a folder, which were checked (`Database.add_from`). Returns a line about
    each kind of retraction that was left.

    Raises:
        UsageError: if a retraction is not signed by whom it names.
    """
    if not (file := folder / "retraction.parquet").exists():
        return []
    source = f"read_parquet({quoted(file)})"
    keys = ", ".join(quoted(key) for key in (*trusted(), own_key()) if key) or "NULL"
    signed = f"coalesce(signer IN ({keys}) AND signature <> '', false)"
    for batch in database.batches(f"SELECT {', '.join(_SIGNED)}, signature FROM {source} WHERE {signed}", _BATCH):
        for *values, signature in batch:
            row = dict(zip(_SIGNED, values, strict=True))
            if not fits(row["signer"], signature, _signed(row)):
                raise UsageError(
                    f"the retraction of {row['measurement_id']} is not signed by {signer_name(row['signer'])}, whom "
                    f"it names; nothing was imported"
                )
    ((left, unsigned, some),) = database.query(
        f"SELECT count(*), count_if(signature = ''), max(signer) FILTER (signature <> '') "
        f"FROM {source} WHERE NOT {signed}"
    )
    if not left:
        return []
    believed = file.with_suffix(".believed")
    database.change([f"COPY (FROM {source} WHERE {signed}) TO {quoted(believed)} (FORMAT parquet)"])
    believed.replace(file)
    lines = [f"left: {counted(unsigned, 'retraction')} without a signature"] if unsigned else []
    if left > unsigned:
        lines.append(
            f"skipped: {counted(left - unsigned, 'retraction')} of unknown keys, such as {some} (`kernrec db trust`)"
        )
    return lines


def retracted(database: Database) -> int:
    """How many measurements of a database answer no more."""
    ((count,),) = database.query(RETRACTED)
    return int(count)


def forget(database: Database, signer: str) -> int:
    """Believe the retractions of a key no longer; returns how many measurements answer again."""
    before = retracted(database)
    database.change([f"DELETE FROM db.retraction WHERE signer = {quoted(signer)}"])
    database.rescale()
    return before - retracted(database)


def _signed(row: Row) -> bytes:
    moment = row["retracted_at"]
    assert isinstance(moment, datetime)
    return canonical_json(
        {"retraction": {name: row[name] for name in _SIGNED} | {"retracted_at": moment.isoformat()}}
    ).encode()
