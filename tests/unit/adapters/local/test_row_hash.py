"""The row hash over Arrow batches, held against the plain Python of the specification."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.local.row_hash import checksum_of, row_hashes, shape_of
from lakehouse_backfill.errors import Unsupported
from tests.support.oracles import row_hash as oracle

_KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "n": (pa.int32(), "long"),
    "m": (pa.int64(), "long"),
    "f": (pa.float32(), "double"),
    "d": (pa.float64(), "double"),
    "small": (pa.decimal128(10, 2), "decimal18:2"),
    "big": (pa.decimal128(38, 2), "decimal38:2"),
    "s": (pa.string(), "string"),
    "b": (pa.binary(), "binary"),
    "t": (pa.bool_(), "boolean"),
    "day": (pa.date32(), "date"),
    "at": (pa.timestamp("us", "UTC"), "timestamptz"),
    "local": (pa.timestamp("us"), "timestamp"),
    "many": (pa.list_(pa.string()), ("list", "string")),
    "deep": (pa.list_(pa.list_(pa.int64())), ("list", ("list", "long"))),
    "rec": (
        pa.struct([("y", pa.int64()), ("x", pa.string())]),
        ("struct", {"y": "long", "x": "string"}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), ("map", "string", "long")),
}


def _value(name: str, dice: random.Random) -> Any:
    if dice.random() < 0.2:
        return None
    text = "".join(dice.choice("aé-1€") for _ in range(dice.choice((0, 1, 3, 7, 12, 40, 100))))
    number = dice.choice((0, -1, 7, -(2**31), 2**31 - 1))
    moment = datetime(2013, 2, 15) + timedelta(microseconds=dice.randrange(10**15))  # noqa: DTZ001
    return {
        "n": number, "m": number * 2**31, "f": dice.choice((0.5, -0.0, float("nan"))),
        "d": dice.choice((1.5, -0.0, float("nan"), float("inf"), 1e300)),
        "small": Decimal(number) / 100, "big": Decimal(number) ** 3 / 100, "s": text,
        "b": text.encode(), "t": dice.random() < 0.5,
        "day": date(1969, 12, 31) + timedelta(days=dice.randrange(20_000)),
        "at": moment.replace(tzinfo=timezone.utc), "local": moment,
        "many": [dice.choice((None, "", text)) for _ in range(dice.randrange(4))],
        "deep": [dice.choice((None, [], [number, None])) for _ in range(dice.randrange(3))],
        "rec": {"y": dice.choice((None, number)), "x": dice.choice((None, text))},
        "map": {key: dice.choice((None, number)) for key in dice.sample("abcdef", 3)},
    }[name]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_each_row_has_the_hash_of_the_specification(seed: int) -> None:
    dice = random.Random(seed)
    rows = [{name: _value(name, dice) for name in _KINDS} for _ in range(60)]
    schema = pa.schema({name: kind for name, (kind, _) in _KINDS.items()})
    columns = {
        name: pa.array(
            [list(r[name].items()) if name == "map" and r[name] else r[name] for r in rows], kind
        )
        for name, (kind, _) in _KINDS.items()
    }
    kinds = {name: kind for name, (_, kind) in _KINDS.items()}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    expected = [oracle.row_hash(kinds, row) for row in rows]
    assert row_hashes(batch).tolist() == expected
    # A slice has an offset into the same buffers.
    assert row_hashes(batch.slice(7, 20)).tolist() == expected[7:27]
    found = checksum_of(row_hashes(batch), shape_of(schema))
    assert (found.rows, found.xor, found.total) == oracle.checksum(kinds, rows)


@pytest.mark.parametrize("few", [1, 31, 40])
def test_long_texts_have_the_hash_of_the_specification(few: int) -> None:
    """Of few long ones each is hashed alone; one has more words than are taken at a time."""
    sizes = [2_200_000 if few == 1 else 700, None, *range(500, 500 + 13 * few, 13), 0, 3]
    texts = [None if size is None else ("aé-1€" * size)[:size] for size in sizes]
    batch = pa.RecordBatch.from_pydict({"s": texts, "n": list(range(len(texts)))})
    kinds = {"s": "string", "n": "long"}
    assert row_hashes(batch).tolist() == [
        oracle.row_hash(kinds, row) for row in batch.to_pylist()
    ]  # fmt: skip


@pytest.mark.parametrize("size", [*range(9), 11, 12, 15, 16, 27, 31, 32, 36, 67])
def test_texts_of_one_size_have_the_hash_of_the_specification(size: int) -> None:
    """They are read at equal distances; beside shorter ones and nulls they are not."""
    dice = random.Random(size)
    same = ["".join(dice.choices("abcdefgh", k=size)) for _ in range(9)]
    kinds = {"s": "string", "n": "long"}
    for texts in (same, [*same, "", None, "x"]):
        batch = pa.RecordBatch.from_pydict({"s": texts, "n": list(range(len(texts)))})
        expected = [oracle.row_hash(kinds, row) for row in batch.to_pylist()]
        assert row_hashes(batch).tolist() == expected
        assert row_hashes(batch.slice(2, 5)).tolist() == expected[2:7]


def test_wide_decimals_of_each_number_of_bytes_have_the_hash_of_the_specification() -> None:
    near = [
        sign * (2**bits + more) for bits in range(126) for more in (-1, 0, 1) for sign in (1, -1)
    ]
    values = [None, *map(Decimal, near), None, Decimal("9" * 38), Decimal("-" + "9" * 38)]
    batch = pa.RecordBatch.from_pydict({"big": pa.array(values, pa.decimal128(38, 0))})
    expected = [oracle.row_hash({"big": "decimal38:0"}, row) for row in batch.to_pylist()]
    assert row_hashes(batch).tolist() == expected
    assert row_hashes(batch.slice(300, 90)).tolist() == expected[300:390]


def test_many_columns_have_several_masks_and_no_rows_have_a_checksum() -> None:
    names = [f"c{number:03d}" for number in range(130)]
    row = {name: None if number % 3 else number for number, name in enumerate(names)}
    schema = pa.schema({name: pa.int64() for name in names})
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    assert row_hashes(batch).tolist() == [oracle.row_hash(dict.fromkeys(names, "long"), row)]
    none = batch.slice(0, 0)
    assert checksum_of(row_hashes(none), "s").rows == 0


def test_a_uuid_is_hashed_as_its_text_and_time_of_day_is_refused() -> None:
    one = UUID("12345678-1234-5678-1234-567812345678")
    texts = pa.RecordBatch.from_pylist([{"u": str(one)}])
    uuids = pa.RecordBatch.from_arrays([pa.array([one.bytes], pa.uuid())], ["u"])
    assert row_hashes(uuids).tolist() == row_hashes(texts).tolist()
    assert shape_of(uuids.schema) == shape_of(texts.schema)
    with pytest.raises(Unsupported, match="has no row hash"):
        shape_of(pa.schema({"t": pa.time64("us")}))
