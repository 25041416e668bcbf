"""The lake of the case study: case events, two versions of a calendar, and the first publication.

Up to `SMALL_CASES` cases, tables are made in this process; above that by Spark, partitioned by
month. Both hold the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.case_histories import JURISDICTIONS, LEAST_CASES, CaseHistory
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.project import Project

CASES_PRODUCT: Final = "silver.case_sla"
BREACHES_PRODUCT: Final = "gold.open_breaches"
REPORT_PRODUCT: Final = "gold.regulator_report"
FEED_PRODUCT: Final = "gold.regulator_feed"
CASCADE_PRODUCTS: Final = (CASES_PRODUCT, BREACHES_PRODUCT, REPORT_PRODUCT)
CORRECTIONS_TABLE: Final = "gold.regulator_feed_corrections"
CALENDAR_TABLE: Final = "bronze.sla_calendar"
EVENTS_TABLE: Final = "bronze.case_events"
#: Table -> the method of `CaseHistory` that makes it, and the column of its months.
_SOURCES: Final = {
    EVENTS_TABLE: ("events", "recorded_at"),
    "bronze.case_carried": ("carried", "month"),
    "bronze.case_census": ("census", "as_of"),
}
SMALL_CASES: Final = 50_000
CASE_FILES: Final = (
    "catalog/profiles.yaml",
    *(f"catalog/contracts/{product}.yaml" for product in (*CASCADE_PRODUCTS, FEED_PRODUCT)),
    "expectations/bronze.case_events.json",
    "expectations/silver.case_sla.json",
    "jobs/case_sla",
)

_CALENDAR_START, _CALENDAR_STOP = date(2024, 8, 1), date(2027, 1, 1)
#: Holidays on working days, as the calendar of December 2025 has them: month-day, every year.
_HOLIDAYS: Final = {
    "US-NY": ("01-01", "07-04", "11-11", "12-25"),
    "US-CA": ("01-01", "03-31", "07-04", "12-25"),
    "BR-SP": ("01-01", "04-21", "05-01", "07-09", "10-12", "11-15", "12-25"),
    "GB": ("01-01", "12-25", "12-26"),
    "DE": ("01-01", "05-01", "10-03", "12-25", "12-26"),
}
#: What the calendar of June 2026 added: decreed at short notice, and entered too late.
_LATE_HOLIDAYS: Final = {
    "US-NY": (date(2025, 1, 9),),
    "BR-SP": (date(2025, 11, 20), date(2025, 11, 21)),
    "DE": (date(2025, 5, 8),),
}


def calendar_table(*, corrected: bool) -> pa.Table:
    """Return a row for each jurisdiction and day; `corrected`: with the late holidays.

    `working_number` counts the working days from the first day of the calendar to this one.
    """
    rows: list[dict[str, Any]] = []
    for name, zone, _, sla_days in JURISDICTIONS:
        number, late = 0, _LATE_HOLIDAYS.get(name, ()) if corrected else ()
        day = _CALENDAR_START
        while day < _CALENDAR_STOP:
            is_holiday = day.strftime("%m-%d") in _HOLIDAYS[name] or day in late
            is_working = day.weekday() < 5 and not is_holiday
            number += is_working
            rows.append({
                "jurisdiction": name, "zone": zone, "sla_days": sla_days, "day": day,
                "is_working": is_working, "working_number": number,
            })  # fmt: skip
            day += timedelta(days=1)
    return pa.Table.from_pylist(rows, schema=_CALENDAR_SCHEMA)


_CALENDAR_SCHEMA = pa.schema([
    ("jurisdiction", pa.string()), ("zone", pa.string()), ("sla_days", pa.int32()),
    ("day", pa.date32()), ("is_working", pa.bool_()), ("working_number", pa.int32()),
])  # fmt: skip


@dataclass
class CaseLake:
    """The tables of the case study, and what others do with them."""

    project: Project
    cases: int
    #: Up to so many cases tables are made in this process.
    small_cases: int = SMALL_CASES

    @property
    def catalog(self) -> Any:
        """The PyIceberg catalog of the lake."""
        return self.project.wiring.catalog

    def require_free_names(self) -> None:
        """Raise ConfigError, before anything is made, where one of the tables is there already."""
        self.project.wiring.create_lake()
        names = (*_SOURCES, CALENDAR_TABLE, *CASCADE_PRODUCTS, FEED_PRODUCT, CORRECTIONS_TABLE)
        for name in names:
            if self.catalog.table_exists(name):
                raise ConfigError(
                    f"the lake has a table {name}; the case study would write to it",
                    state="nothing was made",
                    fix="choose a profile of a lake without the case study's tables",
                )

    def build_bronze(self) -> int:
        """Load events, what is carried, the census and both calendars; return the events."""
        for namespace in ("bronze", "silver", "gold"):
            self.catalog.create_namespace_if_not_exists(namespace)
        history = CaseHistory(self.cases)
        for name, (method, month) in _SOURCES.items():
            if self.cases <= self.small_cases:
                rows = getattr(history, method)()
                self.catalog.create_table(name, schema=rows.schema).append(rows)
            else:
                self._write_large(name, method, month)
        self._build_calendar()
        return int(self.catalog.load_table(EVENTS_TABLE).scan().count())

    def _write_large(self, name: str, method: str, month: str) -> None:
        first = getattr(CaseHistory(LEAST_CASES), method)()
        table = self.catalog.create_table(name, schema=first.schema)
        table.update_spec().add_field(month, "month").commit()
        frame = getattr(CaseHistory(self.cases), f"{method}_frame")(self.project.wiring.spark)
        frame.writeTo(self._full_name(name)).append()

    def _build_calendar(self) -> None:
        first = calendar_table(corrected=False)
        table = self.catalog.create_table(CALENDAR_TABLE, schema=first.schema)
        table.append(first)
        for tag in ("v2025-12", "v2026-06"):
            if tag == "v2026-06":
                table.overwrite(calendar_table(corrected=True))
            snapshot = table.current_snapshot()
            table.manage_snapshots().create_tag(snapshot.snapshot_id, tag).commit()

    def create_products(self) -> None:
        """Create the tables of the products, each with an empty snapshot.

        A cascade pins what a product reads before it knows the candidate of the run before.
        """
        context = self.project.wiring.context
        for product in (*CASCADE_PRODUCTS, FEED_PRODUCT):
            context.tables.create(self.project.wiring.contract(product))
            table = self.catalog.load_table(product)
            table.append(table.schema().as_arrow().empty_table())

    def file_decisions(self) -> int:
        """File what readers see of decisions with the regulator, as the nightly job does."""
        decided = self.project.accepted(CASES_PRODUCT, "spark").where("state = 'decided'")
        decided.selectExpr(
            "decided_on", "case_id", "jurisdiction", "opened_on", "due_on",
            "breached IS NOT NULL AS is_late",
        ).writeTo(self._full_name(FEED_PRODUCT)).append()  # fmt: skip
        return int(self.catalog.load_table(FEED_PRODUCT).scan().count())

    def _full_name(self, table: str) -> str:
        return f"{self.project.wiring.profile.catalog['name']}.{table}"

    def late_deadlines(self) -> Iterator[Mapping[str, Any]]:
        """Give openings whose UTC date is not that of their jurisdiction, from the first cases."""
        zones = {name: zone for name, zone, *_ in JURISDICTIONS}
        events = CaseHistory(min(self.cases, SMALL_CASES)).events()
        opened = events.filter(pc.equal(events["kind"], "opened"))
        for row in opened.select(["case_id", "jurisdiction", "occurred_at"]).to_pylist():
            local = row["occurred_at"].astimezone(ZoneInfo(zones[row["jurisdiction"]]))
            if local.date() != row["occurred_at"].date():
                yield {**row, "local": local}
