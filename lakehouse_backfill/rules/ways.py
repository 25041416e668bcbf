"""The way by which a table is changed: PyIceberg, Iceberg's Java API, or a rewrite by Spark."""

from __future__ import annotations

from lakehouse_backfill.model.ways import ChosenWay, Engine, TableFacts

#: PyIceberg writes formats 1 and 2, and only reads the next.
WRITTEN_FORMAT = 2
#: About 150 µs an entry in Python: so many take as long as a JVM takes to start.
HEAVY_ENTRIES = 60_000
#: With a JVM that runs anyway, from here on it is faster.
HEAVY_ENTRIES_UP = 10_000

_ROW_IDS = "row ids of the partitions change, as files that come in get new ones"


def choose(facts: TableFacts | None, engine: Engine) -> ChosenWay:
    """Choose the way for a table; None: a table that does not exist yet.

    Without a JVM wherever that is safe and not slower.
    """
    if facts is None:
        return ChosenWay(way="pyiceberg", why="the table is made in format 2, which needs no JVM")
    return _by_need(facts, engine) or _by_weight(facts, engine)


def _by_need(facts: TableFacts, engine: Engine) -> ChosenWay | None:
    """Give the way that a table's content asks for; None when PyIceberg may well write it."""
    if facts.format_version > WRITTEN_FORMAT:
        need = f"table format {facts.format_version} is read by PyIceberg, not written"
        if engine.is_connect:
            return ChosenWay(
                way="rewrite",
                why=f"{need}, and Iceberg's Java API is out of reach of Spark Connect: only Spark "
                "itself could write the rows into the target",
            )
        return ChosenWay(
            way="java", why=f"{need}: Iceberg's Java API commits through Spark; {_ROW_IDS}"
        )
    if facts.equality_deletes and not engine.is_connect:
        return ChosenWay(
            way="java",
            why=f"{facts.equality_deletes} equality delete files may hide rows of the partitions, "
            "which Iceberg's Java API accounts for file by file",
        )
    return None


def _by_weight(facts: TableFacts, engine: Engine) -> ChosenWay:
    limit = HEAVY_ENTRIES_UP if engine.is_up else HEAVY_ENTRIES
    if facts.entries > limit and not engine.is_connect:
        return ChosenWay(
            way="java",
            why=f"{facts.entries} manifest entries have to be rewritten, which Iceberg's Java API "
            "does faster",
        )
    return ChosenWay(
        way="pyiceberg",
        why=f"format {facts.format_version}, {facts.entries} manifest entries to rewrite: "
        "PyIceberg needs no JVM",
    )
