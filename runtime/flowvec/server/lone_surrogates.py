r"""Lone surrogates in JSON: half an emoji is `"\ud83d"` there, which no UTF-8 can hold.

RFC 8259 (section 8.2) allows it in JSON, and msgspec does not. A body may be large and made to be
slow, so its bytes are looked at as arrays.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["strings_at", "without_lone_surrogates"]

_Places = npt.NDArray[np.intp]

_BACKSLASH, _QUOTE, _U = b'\\"u'
_LENGTH = len(rb"\ud83d")


def _table(accepted: bytes) -> npt.NDArray[np.bool_]:
    """Which bytes are accepted, (256,)."""
    table = np.zeros(256, np.bool_)
    table[list(accepted)] = True
    return table


_D, _HEX = _table(b"dD"), _table(b"0123456789abcdefABCDEF")
_HIGH, _LOW = _table(b"89abAB"), _table(b"cdefCDEF")

_decode = msgspec.json.Decoder(list[str]).decode


def without_lone_surrogates(body: bytes) -> tuple[bytes, _Places]:
    """What may be JSON, with the escape of U+FFFD in place of that of each lone surrogate.

    Returns:
        As many bytes as before; and where something was replaced, ascending.
    """
    places = _lone(np.frombuffer(body, np.uint8))
    if not places.size:
        return body, places
    content = bytearray(body)
    letters = np.frombuffer(content, np.uint8)
    for at, letter in enumerate(b"fffd", start=2):
        letters[places + at] = letter
    return bytes(content), places


def _lone(letters: npt.NDArray[np.uint8]) -> _Places:
    """Where the escapes of lone surrogates begin."""
    places = np.flatnonzero(letters[: 1 - _LENGTH] == _BACKSLASH)
    places = places[letters[places + 1] == _U]
    for at, table in enumerate((_D, _HIGH | _LOW, _HEX, _HEX), start=2):
        places = places[table[letters[places + at]]]
    places = _unescaped(letters, places)
    is_high = _HIGH[letters[places + 3]]
    begins_pair = np.zeros(places.size + 1, np.bool_)
    begins_pair[1:-1] = is_high[:-1] & ~is_high[1:] & (np.diff(places) == _LENGTH)
    return places[~(begins_pair[1:] | begins_pair[:-1])]


def _unescaped(letters: npt.NDArray[np.uint8], places: _Places) -> _Places:
    """Those of some places before which there is an even number of backslashes."""
    is_backslash = letters == _BACKSLASH
    begins = is_backslash.copy()
    begins[1:] &= ~is_backslash[:-1]
    runs = np.flatnonzero(begins)  # where runs of backslashes begin
    follows = is_backslash[places - 1] & (places > 0)
    following = places[follows]
    is_kept = ~follows
    is_kept[follows] = (following - runs[np.searchsorted(runs, following) - 1]) % 2 == 0
    unescaped: _Places = places[is_kept]
    return unescaped


def strings_at(content: bytes, places: _Places) -> set[str]:
    """The strings of JSON in which some places are."""
    letters = np.frombuffer(bytearray(content), np.uint8)
    quotes = _unescaped(letters, np.flatnonzero(letters == _QUOTE))
    ends = np.searchsorted(quotes, places)
    ends = ends[np.diff(ends, prepend=-1) > 0]
    # Each string, and what comes after it, which becomes a comma.
    changes = np.zeros(letters.size + 2, np.int8)
    changes[quotes[ends - 1]] += 1
    changes[quotes[ends] + 2] -= 1
    commas = quotes[ends] + 1
    letters[commas[commas < letters.size]] = ord(",")
    chosen = letters[np.cumsum(changes[:-2], dtype=np.int8).view(np.bool_)].tobytes()
    return set(_decode(b"[%b]" % chosen.rstrip(b",")))
