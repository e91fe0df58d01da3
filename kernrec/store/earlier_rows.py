"""Rows as earlier schemas had them, in the form of today."""

from collections.abc import Mapping
from typing import Any

from kernrec.store.measurement import Outcome

_OPEN_BLOCK_TEXT = "the run ended before the reference kernels were looked at again"
_REPLAY_SUFFIX = " replay"


def upgrade_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a measurement from a journal or file of an earlier version.

    Up to schema 3, an open block was told by the error text of a row that ran well, and a replay by the end of
    `measured_by`. `db/schema/004_row_state.sql` does the same to databases.
    """
    upgraded = dict(columns)
    if upgraded.get("outcome") == Outcome.OK and upgraded.get("error") == _OPEN_BLOCK_TEXT:
        upgraded |= {"error": None, "block_open": True}
    measured_by = str(upgraded.get("measured_by") or "")
    if measured_by.startswith("kernrec ") and measured_by.endswith(_REPLAY_SUFFIX):
        upgraded |= {"measured_by": measured_by.removesuffix(_REPLAY_SUFFIX), "replayed": True}
    return upgraded
