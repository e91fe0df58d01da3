"""Identity by content: equal values have the same canonical text, whose hash is their key in every database."""

import json
from hashlib import sha256


def canonical_json(value: object) -> str:
    """`value` as JSON with sorted keys and no spaces; equal values give equal text on every machine.

    For None, bool, int, finite float, str, and lists, tuples and str-keyed mappings of these. Raises `ValueError`
    for NaN and infinities, `TypeError` for anything else.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: object, digits: int = 16) -> str:
    """The first `digits` hexadecimal digits of the SHA-256 of `value`'s canonical text.

    16 digits (64 bits) tell the configs, problems and profiles of a database apart; the log of
    measurements, which is merged from many hands and only grows, takes 32.
    """
    return sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[:digits]
