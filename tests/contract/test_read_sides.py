"""Base and candidate are read once by the diff; what it adds up is what measuring both gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer
from lakehouse_backfill.core.comparison.fingerprints import FingerprintedState
from lakehouse_backfill.core.validation.sides import KnownBase, SidesReading
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.ports.compute import MeasuredSides
from tests.support.examples.plans import a_plan
from tests.support.fakes.context import context
from tests.support.fakes.lake import FakeLake
from tests.support.lakes.tables import TARGET, Kit, field_of, row

pytestmark = pytest.mark.req("P2", "Q4")
DAYS = tuple(f"2024-01-{number:02}" for number in range(1, 7))
SUMS = (Measure(name="ids", sum="id"), Measure(name="by", counts_by="region"))
COUNTS = (Measure(name="regions", count="region"),)
BOTH, EARLIER = "both sides", "earlier partitions"


class Noting:
    """Measures in this process, and notes what of."""

    def __init__(self, kit: Kit) -> None:
        self._inner = LocalMeasurer(kit.catalog)
        self.calls: list[str] = []

    def measure(self, old: Any, new: Any, *others: Any, **known: Any) -> MeasuredSides:
        self.calls.append(EARLIER if new[1] is None else BOTH)
        return self._inner.measure(old, new, *others, **known)


def reading(kit: Kit, measures: tuple[Measure, ...], **known: Any) -> SidesReading:
    """Of random rows of a week, the third day on of which is restated, and one day is kept."""
    one, base = Random(7), 0
    kit.create(("d", "identity"))
    for day in DAYS:
        rows = [row(n, day, region=one.choice(["EU", None])) for n in range(one.randrange(1, 30))]
        kit.append(*rows)
        base = kit.head() or 0
    for day in DAYS[3:]:
        kit.live.load_table(TARGET).delete(EqualTo("d", day))
        kit.append(*(row(n, day, region="US") for n in range(one.randrange(1, 30))))
    made = a_plan()
    contract = made.resolved.contract.model_copy(update={"key": ("d", "id"), "measures": measures})
    target = made.resolved.target.model_copy(update={"table": TARGET, "snapshot_id": base})
    changes = {
        "scope": Scope(field=field_of("d"), partitions=DAYS[2:]), "contract": contract,
        "target": target,
    }  # fmt: skip
    plan = made.model_copy(
        update={"shadow_table": TARGET, "resolved": made.resolved.model_copy(update=changes)}
    )
    shadow = kit.tables.describe(TARGET)
    assert shadow is not None
    base_state = KnownBase(
        FingerprintedState(TARGET), known.get("full", False), DAYS[:2], known.get("counts")
    )
    return SidesReading(plan, base_state, shadow, measures)


def read(kit: Kit, sides: SidesReading) -> tuple[MeasuredSides, list[str]]:
    made = context(FakeLake(), differ=lambda engine: LocalDiffer(kit.catalog), tables=kit.tables)
    measuring: Any = Noting(kit)
    with ThreadPoolExecutor(2) as pool:
        diff, found = sides.start(made, measuring, pool)
        assert diff.result().diff.files.shared == 1
        return found.result(), measuring.calls


@pytest.mark.parametrize(
    ("measures", "known", "beside"),
    [
        pytest.param((), {}, [], id="nothing is known"),
        pytest.param(SUMS, {}, [EARLIER], id="nothing is known, and sums of earlier days"),
        pytest.param(SUMS, {"full": True}, [EARLIER], id="checksums are known, sums are not"),
        pytest.param((), {"full": True}, [], id="checksums are known"),
        pytest.param(
            COUNTS, {"full": True, "counts": dict.fromkeys(DAYS, (3,))}, [], id="all is known"
        ),
    ],
)
def test_the_diff_adds_up_what_is_not_known_of_both_sides(
    kit: Kit, measures: tuple[Measure, ...], known: dict[str, Any], beside: list[str]
) -> None:
    sides = reading(kit, measures, **known)
    found, calls = read(kit, sides)
    assert calls == beside
    noting: Any = Noting(kit)
    assert found == sides._measure(noting)
