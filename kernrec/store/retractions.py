"""Withdraw measurements of one database: they stay in the log, but answers no longer use them.

A row of the table `retraction` names a measurement by its key. It applies only to its own database: merges and bundles
omit it. A withdrawal at a place (`kernrec.store.share.withdraw`) reaches every copy.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.measurement_log import RETRACTED
from kernrec.store.rows import Row


def retraction_rows(keys: Iterable[str], reason: str) -> list[Row]:
    """Return rows of the table `retraction` that withdraw the measurements with these keys now."""
    row = {"reason": reason, "signer": "", "signature": ""}
    row["retracted_at"] = datetime.now(UTC).replace(microsecond=0, tzinfo=None).isoformat()
    return [{"measurement_id": key, **row} for key in keys]


def retracted(database: Database) -> int:
    """Return the number of withdrawn measurements of a database."""
    ((count,),) = database.query(RETRACTED)
    return int(count)


def forget(database: Database, signer: str) -> int:
    """Ignore a signer's withdrawals from now on; return the number of measurements that are used again."""
    before = retracted(database)
    database.change([f"DELETE FROM db.retraction WHERE signer = {quoted(signer)}"])
    database.rescale()
    return before - retracted(database)
