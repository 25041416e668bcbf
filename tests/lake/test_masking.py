"""Masks are computed by Spark as defined, and stored values that are no masks are counted."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.spark.staging.masks import count_misshapen, mask_output
from lakehouse_backfill.domain.guards.privacy import MaskedColumn, MaskKey
from tests.support.fakes.context import contract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.req("E3")
SECRET = b"a secret that is long enough"
NAMES = ("k", "hashed", "token", "none", "short")
OWN = contract(
    key=["k"],
    columns=[{"name": name, "type": "string"} for name in ("day", *NAMES)],
    privacy={
        "key": {"env": "MASK_KEY", "version": "1"},
        "columns": {
            "hashed": {"mask": "hash"}, "token": {"mask": "tokenise"},
            "none": {"mask": "null"}, "short": {"mask": "truncate", "length": 2},
        },
    },
)  # fmt: skip


def read_secret(key: MaskKey) -> bytes:
    assert key.env == "MASK_KEY"
    return SECRET


def oracle(kind: str, text: str) -> bytes:
    key = hmac.new(SECRET, b"lakehouse-backfill masks", hashlib.sha256).digest()
    return hmac.new(key, f"{kind}\0{text}".encode(), hashlib.sha256).digest()


def test_masks_are_computed_as_defined(spark: SparkSession) -> None:
    texts = ["Zoë", "", "🙂🙂🙂"]
    raw = [("1", text, text, text, text) for text in texts] + [("2", *[None] * 4)]
    masked = mask_output(spark.createDataFrame(raw, ", ".join(f"{n} string" for n in NAMES)),
                         OWN, read_secret)  # fmt: skip
    tokens = [base64.b32encode(oracle("tokenise", t)[:16]).decode() for t in texts]
    expected = [
        ("1", oracle("hash", text).hex(), f"tok_{token.rstrip('=').lower()}", None, text[:2])
        for text, token in zip(texts, tokens, strict=True)
    ]
    assert [tuple(row) for row in masked.collect()] == [*expected, ("2", *[None] * 4)]
    assert masked.schema == spark.createDataFrame(raw, masked.schema).schema
    # Spark logs plans: a key in a literal would be in them.
    key = hmac.new(SECRET, b"lakehouse-backfill masks", hashlib.sha256).digest()
    plan = masked._jdf.queryExecution().toString()
    assert not any(text in plan for text in (SECRET.decode(), key.hex(), key.hex().upper()))


def test_what_no_mask_made_is_counted(spark: SparkSession) -> None:
    made, token = oracle("hash", "a").hex(), f"tok_{'a' * 26}"
    stored = spark.createDataFrame(
        [("1", made, token, None, "ab"), ("2", "raw", "raw", "raw", "abc"),
         ("3", None, None, None, None), ("4", f"{made}\n", token, "", "a")],
        ", ".join(f"{name} string" for name in NAMES),
    )  # fmt: skip
    inputs = {"hashed": [spark.createDataFrame([("raw",), ("other",), ("raw",)], "mail string")]}
    assert count_misshapen(stored, OWN.masked_columns, inputs) == (
        MaskedColumn(column="hashed", values=3, misshapen=2, raw=1),
        MaskedColumn(column="token", values=3, misshapen=1),
        MaskedColumn(column="none", values=2, misshapen=2),
        MaskedColumn(column="short", values=3, misshapen=1),
    )
