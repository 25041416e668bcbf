"""XXH64 of many values at once, each with a seed of its own, in numpy.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Spark's `xxhash64` seeds the
hash of a value with the hash so far, so that no library's function, which has one seed, fits.

All arrays are of np.uint64, one number for each value, unless said otherwise. Each step works on
all values, in place: to pick those that it is for costs more than to compute it for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

#: An array of np.uint64; what numpy's operators return is not typed.
Words = Any
_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ),
)  # fmt: skip
_STRIPE, _WORD, _HALF = 32, 8, 4
_LOW_HALF, _LOW_BYTE = np.uint64(0xFFFFFFFF), np.uint64(0xFF)
#: Of so few long values each is hashed alone, with Python's numbers: 32 bytes of one take 1 us.
#: A step of numpy takes 30 us for 32 bytes of all of them.
_FEW_ROWS = 32
#: Words of a long value that are Python's numbers at a time.
_WORDS_AT_ONCE = 65_536


def hash_longs(values: Words, seeds: Words) -> Words:
    """Return the hash of each number of 64 bits."""
    found, word = seeds + (_P5 + np.uint64(_WORD)), values.copy()
    other = np.empty_like(found)
    _mix_word(found, word, other)
    return _finish(found, other)


def hash_ints(values: Words, seeds: Words) -> Words:
    """Return the hash of each number of 32 bits, without its sign."""
    found, half = seeds + (_P5 + np.uint64(_HALF)), values.copy()
    other = np.empty_like(found)
    _mix_half(found, half, other)
    return _finish(found, other)


def hash_bytes(data: Any, offsets: Any, seeds: Words) -> Words:
    """Return the hash of each text; `data` (np.uint8) has one behind the other.

    Text `i` is from `offsets[i]` up to `offsets[i + 1]` (np.int64).
    """
    base, stop = int(offsets[0]), int(offsets[-1])
    # Words are read for all texts, also beyond the end of the last one.
    data = np.concatenate([data[base:stop], np.zeros(_STRIPE + _WORD, np.uint8)])
    at, sizes = offsets[:-1] - base, np.diff(offsets)
    longest = int(sizes.max(initial=0))
    if longest >= _STRIPE:
        at, left, found = _hash_stripes(data, at, sizes.copy(), seeds)
    else:
        left, found = sizes, seeds + _P5
        if len(sizes) and longest == sizes.min():
            # Texts of one size lie at equal distances, where reading needs no places of words.
            at, left = range(0, max(1, stop - base), max(1, longest)), left[:1]
    found += sizes.astype(np.uint64)
    return _hash_rest(data, at, left, found)


def _hash_rest(data: Any, at: Any, left: Any, found: Words) -> Words:
    """Add what is left of each text, fewer than 32 bytes; of texts of one size, `left` has one."""
    other = np.empty_like(found)
    for place in range(0, int(left.max(initial=0)) - _WORD + 1, _WORD):
        mix_word = partial(_mix_word, word=_words(data, at, place), other=other)
        found = _where(left >= place + _WORD, mix_word, found)
    after = left & (_WORD - 1)
    if after.any():
        last = _words(data, at, left - after)
        has_half = after & _HALF
        mix_half = partial(_mix_half, half=last & _LOW_HALF, other=other)
        found = _where(has_half > 0, mix_half, found)
        last >>= (has_half * _WORD).astype(np.uint64)
        after = after - has_half
        for number in range(_HALF - 1):
            mix_byte = partial(_mix_byte, byte=last & _LOW_BYTE, other=other)
            found = _where(after > number, mix_byte, found)
            last >>= np.uint64(_WORD)
    return _finish(found, other)


def _where(is_due: Any, mix: Callable[[Words], None], found: Words) -> Words:
    """Return the hashes so far after a step, where it is due."""
    if not is_due.any():
        return found
    if is_due.all():
        mix(found)
        return found
    mixed = found.copy()
    mix(mixed)
    return np.where(is_due, mixed, found)


def _hash_stripes(data: Any, at: Any, left: Any, seeds: Words) -> tuple[Any, Any, Words]:
    """Hash the whole stripes of 32 bytes; return positions, bytes left, and hashes so far."""
    found = seeds + _P5
    at = at.copy()
    rows = np.flatnonzero(left >= _STRIPE)
    own = seeds[rows]
    lanes = [own + _P1 + _P2, own + _P2, own.copy(), own - _P1]
    active = np.arange(len(rows))
    while len(active) > _FEW_ROWS:
        whole = rows[active]
        for lane in range(4):
            word = _words(data, at[whole], lane * _WORD)
            lanes[lane][active] = _round(lanes[lane][active], word)
        at[whole] += _STRIPE
        left[whole] -= _STRIPE
        active = active[left[whole] >= _STRIPE]
    for place, row in zip(active, rows[active], strict=True):
        size = int(left[row]) // _STRIPE * _STRIPE
        words = data[at[row] : at[row] + size].view("<u8").reshape(-1, 4)
        for lane in range(4):
            lanes[lane][place] = _lane_of_one(int(lanes[lane][place]), words[:, lane])
        at[row] += size
        left[row] -= size
    mixed = sum(
        (_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)),
        start=np.zeros(len(rows), np.uint64),
    )
    for lane_words in lanes:
        mixed = (mixed ^ _round(np.uint64(0), lane_words)) * _P1 + _P4
    found[rows] = mixed
    return at, left, found


def _lane_of_one(lane: int, words: Any) -> int:
    """Return a lane of one value after all of its words.

    Each round needs the one before, so that numpy would do a whole call for each of its operations.
    """
    factor, below = int(_P1), 0xFFFFFFFFFFFFFFFF
    for start in range(0, len(words), _WORDS_AT_ONCE):
        for term in (words[start : start + _WORDS_AT_ONCE] * _P2).tolist():
            lane = (lane + term) & below
            lane = (lane << 31 | lane >> 33) * factor & below
    return lane


def _words(data: Any, at: Any, place: Any) -> Words:
    """Return a copy of the 8 bytes at a place of each text, as little-endian numbers."""
    if isinstance(at, range):
        start = int(np.max(place))
        return np.ndarray((len(at),), "<u8", data, start, (at.step,)).copy()
    words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", buffer=data, strides=(1,))
    return words[at + place]


def _mix_word(found: Words, word: Words, other: Words) -> None:
    """Add 8 bytes to each; `word` and `other` are overwritten."""
    word *= _P2
    _rotate(word, 31, other)
    word *= _P1
    found ^= word
    _rotate(found, 27, other)
    found *= _P1
    found += _P4


def _mix_half(found: Words, half: Words, other: Words) -> None:
    """Add 4 bytes to each; `half` and `other` are overwritten."""
    half *= _P1
    found ^= half
    _rotate(found, 23, other)
    found *= _P2
    found += _P3


def _mix_byte(found: Words, byte: Words, other: Words) -> None:
    """Add a byte to each; `byte` and `other` are overwritten."""
    byte *= _P5
    found ^= byte
    _rotate(found, 11, other)
    found *= _P1


def _round(lane: Any, word: Words) -> Words:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(value: Words, by: int) -> Words:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _rotate(value: Words, by: int, other: Words) -> None:
    """Rotate in place; `other` is overwritten."""
    np.right_shift(value, np.uint64(64 - by), out=other)
    value <<= np.uint64(by)
    value |= other


def _finish(found: Words, other: Words) -> Words:
    for by, factor in ((33, _P2), (29, _P3)):
        np.right_shift(found, np.uint64(by), out=other)
        found ^= other
        found *= factor
    np.right_shift(found, np.uint64(32), out=other)
    found ^= other
    return found
