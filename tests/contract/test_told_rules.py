"""Rules that files answer by their own metrics: as reading the columns would, which is spared."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

from lakehouse_backfill.adapters.local import inspecting
from lakehouse_backfill.adapters.local.inspecting import LocalInspector
from lakehouse_backfill.domain.checks import NotNull, OneOf, RowRule, Within
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.run import ChunkFacts
from tests.contract.test_inspecting import plan
from tests.support.lakes.deletes import hide
from tests.support.lakes.tables import TARGET, Kit, field_of, row

pytestmark = pytest.mark.req("P2", "Q9")
DAYS = ("2024-01-30", "2024-01-31")
NOON = datetime(2024, 1, 31, 12, tzinfo=timezone.utc)
#: Rules that some files keep, and others break.
RULES: tuple[RowRule, ...] = (
    NotNull("v"), NotNull("region"), NotNull("id"),
    Within("id", 0, 10**6), Within("id", 0, 20), Within("id", 20, None, is_low_excluded=True),
    Within("id", -1.5, 10.5), Within("ts", None, NOON), Within("v", 1, 3, of_length=True),
    OneOf("region", ("EU",)),
)  # fmt: skip


def looked_at(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, rules: tuple[RowRule, ...]
) -> tuple[ChunkFacts, set[str]]:
    """What the chunk is found to hold, and the columns that are read."""
    of, names = plan(field_of("d"), DAYS, ("id",)), set[str]()
    read = inspecting.stream_file_columns

    def noted(side: Any, task: Any, columns: Any, *others: Any) -> Any:
        names.update(columns)
        return read(side, task, columns, *others)

    chunk = Chunk(chunk_id="c1", partitions=DAYS)
    with monkeypatch.context() as patch:
        patch.setattr(inspecting, "stream_file_columns", noted)
        return LocalInspector(kit.catalog).chunk(of, chunk, kit.head(), rules), names


def fill(kit: Kit, metrics: str, seed: int) -> None:
    one = Random(seed)
    kit.create(("d", "identity"))
    with kit.live.load_table(TARGET).transaction() as change:
        change.set_properties({"write.metadata.metrics.default": metrics})
    for _ in range(4):
        least, width, day = one.choice([-5, 0, 21]), one.randrange(1, 30), one.choice(DAYS)
        regions = one.choice([["EU"], ["EU", None], [None]])
        texts = one.choice([["a" * 40, "b"], [None, "x" * 17]])
        kit.append(
            *(
                row(least + n, day, one.choice(texts), one.choice(regions), hour=one.randrange(24))
                for n in range(width)
            )
        )


@pytest.mark.parametrize("metrics", ["none", "counts", "truncate(16)", "full"])
def test_what_files_say_of_rules_is_what_their_rows_say(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, metrics: str
) -> None:
    fill(kit, metrics, len(metrics))
    told, _ = looked_at(kit, monkeypatch, RULES)
    with monkeypatch.context() as patch:
        patch.setattr(inspecting, "_told_breaking", lambda *of: None)
        assert looked_at(kit, patch, RULES) == (told, {"id", "d", "v", "region", "ts"})
    assert any(told.broken)
    nulls, spared = looked_at(kit, monkeypatch, RULES[:3])
    assert nulls.broken == told.broken[:3]
    assert spared == ({"id", "d", "v", "region"} if metrics == "none" else {"id", "d"})
    # A range that every file keeps is read of no file that has bounds.
    wide = Within("ts", None, NOON + timedelta(days=99))
    assert looked_at(kit, monkeypatch, (wide,))[1] == (
        {"id", "d", "ts"} if metrics in ("none", "counts") else {"id", "d"}
    )


def test_files_of_which_rows_are_hidden_are_read(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, DAYS[0], region=None), row(2, DAYS[0]))
    hide(kit, 1)
    facts, names = looked_at(kit, monkeypatch, (NotNull("region"),))
    assert facts.broken == (0,)
    assert "region" in names
