"""The way by which a table is changed: PyIceberg, Iceberg's Java API, or a rewrite by Spark."""

from __future__ import annotations

from lakehouse_backfill.core.planning import schema_refusals
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.ways import ChosenWritePath, JvmState, TableFacts
from lakehouse_backfill.errors import Unsupported

#: PyIceberg writes formats 1 and 2, and only reads the next.
MAX_WRITTEN_FORMAT = 2
#: About 150 µs an entry in Python: so many take as long as a JVM takes to start.
HEAVY_ENTRIES = 60_000
#: With a JVM that runs anyway, from here on it is faster.
HEAVY_ENTRIES_JVM_RUNNING = 10_000

_BUILT = (
    "the catalog offers no register_table, so that its shadow is a table that is created and given "
    "the target's state by one commit"
)
_ROW_IDS = "row ids of the partitions change, as files that come in get new ones"


def choose_write_path(facts: TableFacts | None, engine: JvmState) -> ChosenWritePath:
    """Choose the way for a table; None: a table that does not exist yet.

    Without a JVM wherever that is safe and not slower.
    """
    if facts is None:
        return ChosenWritePath(
            way="pyiceberg", why="the table is made in format 2, which needs no JVM"
        )
    chosen = _required_write_path(facts, engine) or _faster_write_path(facts, engine)
    if facts.registers:
        return chosen
    return chosen.model_copy(update={"why": f"{chosen.why}; {_BUILT}"})


def _required_write_path(facts: TableFacts, engine: JvmState) -> ChosenWritePath | None:
    """Give the way that a table's content asks for; None when PyIceberg may well write it."""
    if facts.format_version > MAX_WRITTEN_FORMAT:
        need = f"table format {facts.format_version} is read by PyIceberg, not written"
        if engine.is_connect:
            return ChosenWritePath(
                way="rewrite",
                why=f"{need}, and Iceberg's Java API is out of reach of Spark Connect: Spark "
                f"itself can write the rows into the target, once more; {_ROW_IDS}",
            )
        return ChosenWritePath(
            way="java", why=f"{need}: Iceberg's Java API commits through Spark; {_ROW_IDS}"
        )
    if not facts.equality_deletes:
        return None
    hidden = f"{facts.equality_deletes} equality delete files may hide rows of the partitions"
    if engine.is_connect:
        return ChosenWritePath(way="rewrite", why=f"{hidden}: Spark itself writes their rows anew")
    return ChosenWritePath(
        way="java", why=f"{hidden}, which Iceberg's Java API accounts for file by file"
    )


def _faster_write_path(facts: TableFacts, engine: JvmState) -> ChosenWritePath:
    limit = HEAVY_ENTRIES_JVM_RUNNING if engine.is_up else HEAVY_ENTRIES
    if facts.entries > limit and not engine.is_connect:
        return ChosenWritePath(
            way="java",
            why=f"{facts.entries} manifest entries have to be rewritten, which Iceberg's Java API "
            "does faster",
        )
    return ChosenWritePath(
        way="pyiceberg",
        why=f"format {facts.format_version}, {facts.entries} manifest entries to rewrite: "
        "PyIceberg needs no JVM",
    )


def require_fitting_write_path(manifest: RunManifest, table: str, chosen: ChosenWritePath) -> None:
    """Refuse what the way's commits cannot do; raises Unsupported.

    A change of columns goes by PyIceberg only. The commit of a swap by rows is
    Spark's own: it names no head that must still be there, and is an overwrite.
    """
    schema_refusals.require_no_row_rewrite(manifest, table, chosen.way)
    asks = {
        "safety.freeze": manifest.safety.freeze,
        "target.publish_mode": manifest.target.publish_mode == "append",
    }
    for field in (name for name, is_asked in asks.items() if is_asked and chosen.way == "rewrite"):
        raise Unsupported(
            f"{table} cannot be published with this {field}: {chosen.why}, by a commit that "
            "replaces rows, whatever is committed to other partitions",
            state="nothing was planned",
            fix=f"change {field}, or give the profile a Spark of its own: remove spark.remote",
            field=field,
        )
