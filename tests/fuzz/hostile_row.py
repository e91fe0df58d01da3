"""Rows of an untrusted user in which one to three columns have hostile values."""

import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kernrec.op import find_op
from kernrec.store.measurement import NEWEST_PROTOCOL
from kernrec.store.schema import layout_of
from tests.helpers.sharing import GPU, HASH, KERNEL, PROBLEM, UUID_HASH

Row3 = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""Columns of a measurement, of its config and of its problem, all without keys."""
LAYOUT = layout_of()
OTHER_PROBLEM = find_op("matmul").problem(m=512, n=512, k=512)
_NINES = "9" * 5000
_TEXTS = (
    *(
        "", " ", "a", "ok", "crash", "own", "NULL", "nan", "1e309", "-1", "0x10", "true", "monday", "tuesday",
        "incorrect",
    ),
    *(GPU, KERNEL, HASH, "final", "../../etc/passwd", "/dev/stdin", "file:///etc/passwd", "a\x00b", "a\x1b[2J", "a\nb"),
    *("a\r", "\u202eabc", "\u2028", "\x7f", "'; DROP TABLE measurement; --", "$$", "{x}", "%s%s%n", "é" * 100),
    *("a" * 9000, "\U0001f600", "\ufeffa", "e\u0301", "{}", "[]", '{"a":1}', '{"block_m":64}', '{"block_m":64.0}'),
    *('{"block_m":"64"}', '{"block_m":true}', '{"block_m":null}', f'{{"block_m":{_NINES}}}', '{"block_m":1e999}'),
    *('{"block_m":1e99}', '{"block_m":-0}', '{"block_m":064}', r'{"block_m":"\q"}', r'{"block_m":"\u001b[2J"}'),
    *('{"block_m":{"a":1}}', '{"block_m":64,"block_m":32}', '{"":0}', '{"block_m":64}{}', '{"block_m":64'),
    *('{"power cap":1e300}', '{"power cap":-1}', '{"thermal":"x"}'),
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, 7, NEWEST_PROTOCOL + 1, 127, 2**15, 2**31 - 1, -(2**31))
_LONG = (*_WHOLE, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
_NUMBERS = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e-300, 1e-12, 1e-9, 3e-7, 1e-6, 1.0, 1e3, 1e6, 1e9, 1e29),
    *(1e30, 1e31, 1e300, 1.7976931348623157e308, -1.0, -1e-9, -1e300, 0.1 + 0.2, 700.0, 1400.0, 1401.0, 1.98e9, 1e5),
)
_DATES = (
    *("0001-01-01", "1969-12-31", "1970-01-01", "1999-12-31T23:59:59", "2000-01-01", "2026-03-01T12:00:00.000001"),
    *("2099-01-01", "9999-12-31T23:59:59"),
)
_DIMS = (
    *("0", "-1", "1", "64", "064", "+64", "6.4e1", "9" * 15, "9" * 16, "9" * 4200, "2147483648", "", " 64", "x", "64;"),
    "\u0666\u0664",  # the number 64 in Arabic digits
)
_KEYS = (
    *("matmul[m={},n=32,k=16]f32,nn", "matmul[m=64,n=32,k={}]f32,nn", "matmul[m={},n=32]f32,nn", "matmul[m={}"),
    *("conv2d[n={},c=64,h=56,w=56,k=64,r=3,s=3]f16,nchw", "attention[b={}]f16,x", "softmax[rows={},cols=7]f32,row"),
    *("matmul[m={},n=32,k=16,k=16]f32,nn", "mine[a={}]f32,x", "[{}],", "matmul[m={},n=32,k=16]f64,nn"),
    "matmul[m={},n=32,k=16]f32,zz",
)


def hostile(chance: random.Random, number: int) -> Row3:
    """Return a measurement, its config and its problem with one to three hostile columns."""
    kinds = LAYOUT.columns["measurement"]
    config: dict[str, Any] = {"kernel": KERNEL, "tunables": f'{{"block_m":{16 << chance.randrange(5)}}}'}
    problem: dict[str, Any] = dict(chance.choice((PROBLEM, OTHER_PROBLEM)).as_dict())
    problem["dims"] = json.dumps(problem["dims"], sort_keys=True, separators=(",", ":"))
    row: dict[str, Any] = {
        "gpu": GPU, "kernel": KERNEL, "kernel_hash": HASH, "protocol_version": 1, "tier": "final", "block": 0,
        "session": f"theirs {number % 5}", "position": number, "measured_at": datetime(2026, 3, 1, 12),
        "latency_s": 2e-3 * math.exp(chance.gauss(0.0, 0.3)), "outcome": "ok", "device_uuid_hash": "ffeeddccbbaa0011",
    }  # fmt: skip
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        part = chance.random()
        if part < 0.12:
            config[chance.choice(("tunables", "tunables", "kernel"))] = chance.choice(_TEXTS)
        elif part < 0.25:
            _change_problem(problem, chance)
        elif part < 0.35:  # pose as a row of the owner's session and GPU
            row |= {"session": "monday", "position": chance.choice((0, 1, 2)), "device_uuid_hash": UUID_HASH}
            row["latency_s"] = chance.choice((1e-3, 1e-4, 5e-4, 1e-6, 1.0))
            row["outcome"] = chance.choice(("ok", "incorrect", "crash", "quarantined"))
            row["replayed"] = chance.choice((None, True))
        else:
            name = chance.choice(list(kinds)[1:])
            row[name] = _value(kinds[name], chance)
    return row, config, problem


def _value(kind: str, chance: random.Random) -> Any:
    if kind == "DOUBLE":
        if chance.random() < 0.5:
            return chance.choice(_NUMBERS)
        return chance.choice((1.0, 1.0, -1.0)) * 10.0 ** chance.uniform(-320.0, 308.0)
    if kind == "DOUBLE[]":
        return [_value("DOUBLE", chance) for _ in range(chance.choice((0, 1, 3, 50)))]
    if kind == "TIMESTAMP":
        soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=chance.choice((-400, 0, 2, 400)))
        return chance.choice((soon, datetime.fromisoformat(chance.choice(_DATES))))
    if kind == "BOOLEAN":
        return chance.choice((True, False))
    if kind == "INTEGER":
        return chance.choice(_WHOLE)
    if kind == "BIGINT":
        return chance.choice(_LONG)
    return chance.choice(_TEXTS)


def _change_problem(problem: dict[str, Any], chance: random.Random) -> None:
    kind, dim = chance.randrange(4), chance.choice(_DIMS)
    if kind == 0:
        problem[chance.choice(list(problem))] = chance.choice(_TEXTS)
    elif kind == 1:  # only the key is wrong
        problem["key"] = chance.choice(_KEYS).format(dim)
    elif kind == 2:  # only the dimensions are wrong
        problem["dims"] = f'{{"k":16,"m":{dim},"n":32}}'
    else:  # key and dimensions are wrong but agree
        problem |= {"key": f"matmul[m={dim},n=32,k=16]f32,nn", "dims": f'{{"k":16,"m":{dim},"n":32}}'}
        problem |= {"op": "matmul", "dtype": "f32", "layout": "nn"}
