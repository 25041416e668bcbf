"""Masks are computed by Spark as defined, and stored values that are no masks are counted."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.spark.staging.masks import (
    MaskRepetition,
    count_misshapen,
    mask_output,
)
from lakehouse_backfill.core.approval.decisions import logged_validation
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.validate import mask_sources
from lakehouse_backfill.domain.guards.privacy import MaskedColumn, MaskKey, MaskSources
from tests.support.fakes.context import contract
from tests.support.spark.modes import Make

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


COPIES = {"k": "people.id", "hashed": "people.mail", "short": "people.mail", "none": "people.mail"}


def test_masks_are_computed_again_and_compared_by_row(spark: SparkSession) -> None:
    people = spark.createDataFrame(
        [("1", "ann"), ("1", "an2"), ("2", "bob")], "id string, mail string"
    )
    ann, bob = (oracle("hash", name).hex() for name in ("ann", "bob"))
    other = hmac.new(b"another secret of some length", b"ann", hashlib.sha256).hexdigest()
    token = f"tok_{'a' * 26}"
    stored = spark.createDataFrame(
        [("1", ann, token, None, "an"), ("2", ann, token, None, "bo"),
         ("2", bob, token, None, "an"),
         ("1", other, token, None, "xx"), ("2", None, token, None, None)],
        ", ".join(f"{name} string" for name in NAMES),
    )  # fmt: skip

    def compared(copies: dict[str, str], unseen: str = "") -> dict[str, MaskedColumn]:
        sources = MaskSources(raw={}, copies=copies, partitions=("2024-01-01",), unseen=unseen)
        again = MaskRepetition(OWN, sources, read_secret, lambda _: people, lambda _: stored)
        found = [MaskedColumn(column=name, values=5, misshapen=0) for name in OWN.masked_columns]
        return {one.column: again.compare(one) for one in found}

    by_key = compared(COPIES)
    # The mask of another row's value, and one that another secret made.
    assert (by_key["hashed"].foreign, by_key["hashed"].by) == (2, ("k",))
    assert (by_key["hashed"].made_of, by_key["short"].foreign) == ("people.mail", 2)
    assert (by_key["none"].foreign, by_key["none"].unseen) == (None, "")
    assert by_key["token"].unseen == "it is no copy of one column of an input"
    # Without the key, the mask of any row's value passes.
    by_value = compared({"hashed": "people.mail"}, "2 partitions are of an earlier run")
    assert (by_value["hashed"].foreign, by_value["hashed"].by) == (1, ())
    assert by_value["hashed"].unseen == "2 partitions are of an earlier run"


def test_rows_with_one_key_are_compared_as_multisets(spark: SparkSession) -> None:
    people = spark.createDataFrame(
        [("1", "ann"), ("1", "an2"), ("2", "bob"), ("2", "bob"), (None, "eve")],
        "id string, mail string",
    )
    ann, an2, bob, eve = (oracle("hash", name).hex() for name in ("ann", "an2", "bob", "eve"))

    def compared(*rows: tuple[str | None, str], copies: dict[str, str] = COPIES) -> MaskedColumn:
        stored = spark.createDataFrame(
            [(key, made, None, None, None) for key, made in rows],
            ", ".join(f"{name} string" for name in NAMES),
        )
        sources = MaskSources(raw={}, copies=copies, partitions=("2024-01-01",))
        again = MaskRepetition(OWN, sources, read_secret, lambda _: people, lambda _: stored)
        return again.compare(MaskedColumn(column="hashed", values=9, misshapen=0))

    def foreign(*rows: tuple[str | None, str]) -> int | None:
        return compared(*rows).foreign

    assert foreign(("1", ann), ("1", an2), ("2", bob), ("2", bob), (None, eve)) == 0
    assert foreign(("1", an2)) == 0  # a transform may choose one
    # The mask of another person stands where this one's should.
    assert foreign(("1", ann), ("1", ann), ("1", ann)) == 2
    assert foreign(("2", bob), ("2", bob), ("2", bob), (None, eve)) == 1
    # With a part of the key only, a join may have made many rows of one.
    without_key = compared(("1", ann), ("1", ann), copies={"hashed": "people.mail"})
    assert (without_key.foreign, without_key.ambiguous) == (0, 2)


def test_with_a_part_of_the_key_a_value_is_known_where_the_input_has_one(
    spark: SparkSession,
) -> None:
    people = spark.createDataFrame(
        [("1", "ann"), ("1", "ann"), ("2", "bob"), ("2", "bea"), (None, "eve")],
        "id string, mail string",
    )
    ann, bob, eve = (oracle("hash", name).hex() for name in ("ann", "bob", "eve"))
    own = OWN.model_copy(update={"key": ("k", "token")})

    def compared(*rows: tuple[str | None, str]) -> tuple[int | None, int, bool]:
        stored = spark.createDataFrame(
            [(key, made, f"tok_{at}", None, None) for at, (key, made) in enumerate(rows)],
            ", ".join(f"{name} string" for name in NAMES),
        )
        sources = MaskSources(raw={}, copies=COPIES, partitions=("2024-01-01",))
        again = MaskRepetition(own, sources, read_secret, lambda _: people, lambda _: stored)
        found = again.compare(MaskedColumn(column="hashed", values=9, misshapen=0))
        return found.foreign, found.ambiguous, gates.check_masks([found]).is_judged

    # A join makes many rows of one; there is one value that each may have.
    assert compared(("1", ann), ("1", ann), ("1", ann), (None, eve)) == (0, 0, True)
    assert compared(("1", bob), ("1", ann)) == (1, 0, True)
    # Which of two people's a row should have is not known: the gate does not say passed.
    assert compared(("2", bob), ("1", ann)) == (0, 1, False)
    assert compared(("2", bob), ("2", ann)) == (1, 1, True)


JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="masked", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.select("d", "k", src.tenant.alias("tenant"), "v", "ver")
"""


def test_validate_computes_the_masks_of_a_run_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_KEY", SECRET.decode())
    modes = make(privacy={
        "columns": {"tenant": {"mask": "hash"}}, "key": {"env": "MASK_KEY", "version": "1"},
        "purposes": {"repair": ["*"]},
    })  # fmt: skip
    modes.transform = "masked"
    modes.source("2, 1, A, 20, 1", "3, 1, B, 30, 1")
    modes.lake.job(JOB, "jobs/job.py")
    run = {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix", "purpose": "repair"}
    run_id, _ = modes.validated(run=run)
    context = modes.project.wiring.context
    logged = logged_validation(context, context.runs.events(run_id), run_id)
    assert logged is not None
    (check,) = (one for one in logged[1].checks if one.name.startswith("masked columns"))
    assert (check.passed, check.detail) == (
        True, "tenant: 0 of 2 values have another shape, 0 are not the mask of src.tenant of the "
        "rows with the same d, k",
    )  # fmt: skip
    # A computed value, and rows of the base, are not: the page says so.
    plan = context.runs.plan(run_id)
    monkeypatch.setenv("MASK_KEY", "another secret that is long enough")
    assert mask_sources(context, plan, {}).unseen == "the secret of the plan is not at hand"
    assert mask_sources(context, plan, None).unseen.startswith("the analysed plan")
