"""Functions that damage a sample file at random, as an untrusted source might."""

import json
import random
import re
import sqlite3
import struct
from contextlib import closing, suppress
from typing import Any

import numpy as np

_EDGES = (
    *("0", "-1", "1e309", "NaN", "null", "true", '""', "[]", "{}", "4294967296", "99999999999999999999", "1.5"),
    *("%", "@", "[", "]", "{", "}", ",", ":", ";", '"', "\\", "\n", "\0", "é", "\x1b", "(", ")", "**", "//", "<", "="),
)
_TOKEN = re.compile(r"\s+|[\w.%]+|.", re.DOTALL)
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 0.0, -0.0, 1e-9, 1e-300, 1e29, 1e31, 1e308, 5e-324),
    *(
        "", "a", "a b", "ok", "crash", "../../etc/passwd", "a\x1b[2J", "a\nb", "\u202e", "é" * 100, "a" * 9000, "{}",
        "[]",
    ),
    *('{"a":1}', '{"a":1e999}', '{"a":{"b":1}}', '{"a":1,"a":2}', [], [1.0], [1e-3, 2e-3], [0.0], [-1.0], {}, {"a": 1}),
    *("2026-03-01T12:00:00", "0001-01-01", "9999-12-31", "matmul[m=1,n=2,k=3]f32,nn", "matmul[m=0,n=0,k=0]f32,nn"),
    *(r'{"a":"\q"}', r'{"a":"\u001b[2J"}', '{"a":%s}' % ("9" * 5000), '{"a":1e%s}' % ("9" * 50), '{"":0}', '{"a":01}'),
    *("2099-01-01T00:00:00", "monday", "final", "screen", "incorrect", "h200-sxm", "matmul_simt", "0123456789abcdef"),
)  # fmt: skip
"""Replacement values. Some are names used elsewhere in a row, because an untrusted row may pose as the user's own."""
_BLOCK, _HEADER = 1 << 18, 1 << 12  # DuckDB's layout: https://duckdb.org/docs/stable/internals/storage
_FACTOR = np.uint64(0xBF58476D1CE4E5B9)


def text(sample: bytes, chance: random.Random) -> bytes:
    """Make one to four changes to the tokens of a text, or cut off its end."""
    changed = sample.decode(errors="surrogateescape")
    for _ in range(chance.choice((1, 1, 2, 4))):
        tokens = _TOKEN.findall(changed)
        if not tokens:
            break
        place = chance.randrange(len(tokens))
        kind = chance.randrange(7)
        if kind == 0:
            del tokens[place]
        elif kind == 1:
            tokens[place] = chance.choice(_EDGES)
        elif kind == 2:
            tokens.insert(place, chance.choice(tokens))
        elif kind == 3:
            tokens[place] *= chance.choice((2, 50, 5000))
        elif kind == 4:
            other = chance.randrange(len(tokens))
            tokens[place], tokens[other] = tokens[other], tokens[place]
        elif kind == 5:
            del tokens[place:]
        else:
            tokens[place] = chance.choice("[{(") * chance.choice((3, 3000))
        changed = "".join(tokens)
    return changed.encode(errors="surrogateescape")


def binary(sample: bytes, chance: random.Random) -> bytes:
    """Make one to eight changes: flip bits, write extreme numbers, or delete, repeat or cut off bytes."""
    changed = bytearray(sample)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        place, size = _place(changed, chance), chance.choice((1, 4, 16, 256))
        kind = chance.randrange(10)
        if kind < 4:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind < 7:
            width = chance.choice((1, 2, 4, 8))
            number = chance.choice((0, 1, 0x7F, 0x80, 0xFF, (1 << 8 * width) - 1, (1 << 8 * width - 1) - 1)) % (
                1 << 8 * width
            )
            changed[place : place + width] = number.to_bytes(width, "little")[: len(changed) - place]
        elif kind == 7:
            del changed[place : place + size]
        elif kind == 8:
            changed[place:place] = changed[place : place + size]
        elif chance.random() < 0.3:
            del changed[place:]
        if not changed:
            break
    return bytes(changed)


def duckdb_file(sample: bytes, chance: random.Random) -> bytes:
    """Damage bytes of a DuckDB file, and usually renew its checksums so that DuckDB reads the damaged blocks."""
    if chance.random() < 0.1:
        return binary(sample, chance)
    changed = bytearray(sample)
    for _ in range(chance.choice((1, 2, 4, 16))):
        place = _place(changed, chance)
        changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ (1 << chance.randrange(8))))
    if chance.random() < 0.9:
        starts = [(place, _HEADER) for place in range(0, 3 * _HEADER, _HEADER)]
        starts += [(place, _BLOCK) for place in range(3 * _HEADER, len(changed), _BLOCK)]
        for start, size in starts:
            struct.pack_into("<Q", changed, start, checksum(bytes(changed[start + 8 : start + size])))
    return bytes(changed)


def sqlite_file(sample: bytes, chance: random.Random) -> bytes:
    """Damage bytes of a SQLite database, or replace one to three values in its tables."""
    if chance.random() < 0.5:
        return binary(sample, chance)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(sample[:18] + b"\1\1" + sample[20:])  # WAL mode needs a file
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for _ in range(chance.choice((1, 1, 2, 3))):
            table = chance.choice(tables)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            value = chance.choice(_VALUES)
            if not isinstance(value, str | float | None) and not (type(value) is int and abs(value) < 2**63):
                value = json.dumps(value)
            with suppress(sqlite3.Error):
                connection.execute(f"UPDATE {table} SET {chance.choice(columns)} = ? WHERE random() % 2", [value])
            rows = connection.execute("SELECT id, content FROM record WHERE typeof(content) = 'text'").fetchall()
            if rows and chance.random() < 0.5:
                number, content = chance.choice(rows)
                changed = text(content.encode(errors="replace"), chance).decode(errors="replace")
                connection.execute("UPDATE record SET content = ? WHERE id = ?", [changed, number])
        connection.commit()
        return connection.serialize()


def checksum(content: bytes) -> int:
    """Return DuckDB's checksum of a block, whose size must be a multiple of eight bytes."""
    with np.errstate(over="ignore"):
        words = np.frombuffer(content, dtype="<u8") * _FACTOR
    return int(np.bitwise_xor.reduce(words)) ^ 5381


def cells(sample: bytes, chance: random.Random) -> bytes:
    tables = json.loads(sample)
    for _ in range(chance.choice((1, 1, 2, 3))):
        row = chance.choice(chance.choice(list(tables.values())))
        row[chance.choice(list(row))] = chance.choice(_VALUES)
    return json.dumps(tables).encode()


def _place(content: bytearray, chance: random.Random) -> int:
    for _ in range(50):
        place = chance.randrange(len(content))
        if content[place]:
            break
    return place
