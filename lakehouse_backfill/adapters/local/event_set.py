"""The events of a snapshot: checked, put in order and selected by DuckDB, which spills to disk.

The order of events: inside an aggregate by `sequence_num`; across aggregates by `occurred_at` and
`event_id`. Where the clock of an aggregate runs backwards the two disagree; an event then takes the
place of the latest one before it in its aggregate. So an event has a `rank`, the highest pair of
instant and id up to it in its aggregate, and rank and sequence number are a total order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.local.duckdb_engine import start_with_spill_folder
from lakehouse_backfill.domain.sources.events import (
    AggregateState,
    EventFindings,
    ReplayPosition,
    ReplayRequest,
    StoredEvent,
)
from lakehouse_backfill.ports.events import HandledEvents

if TYPE_CHECKING:
    import duckdb

#: Findings name at most so many ids, and of each so many letters.
_NAMED, _LETTERS = 5, 80
_CONTENT = (
    "event_id, aggregate_id, aggregate_type, event_type, payload, correlation_id, causation_id, "
    "sequence_num, occurred_us, version, payload_hash, unreadable"
)
_CREATE = """
CREATE TABLE stored (
    event_id VARCHAR, aggregate_id VARCHAR, aggregate_type VARCHAR, event_type VARCHAR,
    payload BLOB, correlation_id VARCHAR, causation_id VARCHAR, sequence_num BIGINT,
    occurred_us BIGINT, created_us BIGINT, version BIGINT, payload_hash VARCHAR,
    unreadable VARCHAR)
"""
#: States and what was handled, beside the events.
_LEDGER_TABLES = (
    "states (aggregate_id VARCHAR, sequence_num BIGINT, handled BIGINT, state VARCHAR)",
    "handled (event_id VARCHAR, aggregate_id VARCHAR, sequence_num BIGINT)",
    "stateless (aggregate_id VARCHAR)",
    "replaced (event_id VARCHAR)",
)
_FIND_REPLACED = """
INSERT INTO replaced SELECT event_id FROM kept
JOIN events USING (event_id, aggregate_id, sequence_num)
WHERE kept.content_hash <> events.content_hash
"""
# Digits of one length: texts then have the order of the instants, also before 1970.
_RANK = """
max(lpad((occurred_us::HUGEINT + 9223372036854775808)::VARCHAR, 20, '0') || event_id)
OVER (PARTITION BY aggregate_id ORDER BY sequence_num ROWS UNBOUNDED PRECEDING)
"""
# Each part with its length, so that no two contents are one text. Stored: never to be changed.
_HASH = "left(sha256(concat(" + ", ".join(
    f"coalesce(length({part})::VARCHAR || ':' || {part}, '-')"
    for part in (
        "event_id", "aggregate_id", "aggregate_type", "event_type", "correlation_id",
        "causation_id", "sequence_num::VARCHAR", "occurred_us::VARCHAR",
        "coalesce(payload_hash, sha256(payload))",
    )
) + ")), 32)"  # fmt: skip
# Instants that Python's calendar holds: years 1 to 9999.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_EVENT_FIELDS = ", ".join(StoredEvent._fields)
_LACKING = (
    "event_id IS NULL OR aggregate_id IS NULL OR event_type IS NULL OR sequence_num IS NULL "
    "OR occurred_us IS NULL"
)


class DuckEventSet:
    """`ports.events.EventSet` in DuckDB."""

    def __init__(self, rows: Iterable[Any], first_sequence: int) -> None:
        """Read all rows: tables of Arrow with the columns of an event, instants in microseconds.

        `payload_hash` is the SHA-256 of a payload as it is stored, where it was decoded.
        """
        self._db = start_with_spill_folder()
        self._first = first_sequence
        try:
            self._load(rows)
        except BaseException:
            self._db.close()
            raise

    def _load(self, rows: Iterable[Any]) -> None:
        self._db.execute(_CREATE)
        for batch in rows:
            self._db.register("batch", batch)
            self._db.execute("INSERT INTO stored BY NAME SELECT * FROM batch")
            self._db.unregister("batch")
        self._rows = self._one("SELECT count(*) FROM stored")
        self._lacking = self._one(f"SELECT count(*) FROM stored WHERE {_LACKING}")  # noqa: S608 (constants)
        self._db.execute(
            "CREATE TABLE events AS SELECT *, "  # noqa: S608 (constants)
            f"{_RANK} AS rank, {_HASH} AS content_hash "
            f"FROM (SELECT {_CONTENT}, min(created_us) AS created_us FROM stored "
            f"WHERE NOT ({_LACKING}) GROUP BY {_CONTENT})"
        )
        self._db.execute("DROP TABLE stored")
        for table in _LEDGER_TABLES:
            self._db.execute(f"CREATE TABLE {table}")

    def findings(self) -> EventFindings:
        """Return what is wrong with them."""
        faults = [f"{self._lacking} rows lack a value that each event has"] if self._lacking else []
        faults += self._grouped(
            "{} event ids have more than one content: {}",
            "SELECT event_id FROM events GROUP BY event_id HAVING count(*) > 1",
        )
        faults += self._grouped(
            "{} sequence numbers have more than one event: {}",
            "SELECT aggregate_id || ' ' || sequence_num FROM events "
            "GROUP BY aggregate_id, sequence_num HAVING count(DISTINCT event_id) > 1",
        )
        faults += self._grouped(
            "{} aggregates have events of several types of aggregate: {}",
            "SELECT aggregate_id FROM events GROUP BY aggregate_id "
            "HAVING count(DISTINCT coalesce(aggregate_type, '')) > 1",
        )
        faults += self._grouped(
            f"{{}} events have a sequence number below {self._first:d}: {{}}",
            f"SELECT event_id FROM events WHERE sequence_num < {self._first:d}",  # noqa: S608 (a number)
        )
        faults += self._grouped(
            "{} events occurred outside the years 1 to 9999, which no calendar has: {}",
            "SELECT event_id FROM events "  # noqa: S608 (numbers)
            f"WHERE occurred_us NOT BETWEEN {_FIRST_US} AND {_LAST_US}",
        )
        missing, gaps = self._gaps()
        held_back = self._one(
            "SELECT count(*) FROM events WHERE left(rank, 20) <> "
            "lpad((occurred_us::HUGEINT + 9223372036854775808)::VARCHAR, 20, '0')"
        )
        versions = self._db.execute(
            "SELECT event_type, version, count(*) FROM events GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        return EventFindings(
            rows=self._rows - self._lacking,
            events=self._one("SELECT count(*) FROM events"),
            aggregates=self._one("SELECT count(DISTINCT aggregate_id) FROM events"),
            faults=tuple(faults),
            missing=missing,
            gaps=gaps,
            held_back=held_back,
            versions=tuple(versions),
        )

    def _gaps(self) -> tuple[int, tuple[str, ...]]:
        """Count sequence numbers that no event has, and name the aggregates."""
        spans = (
            "SELECT aggregate_id, max(sequence_num)::HUGEINT "  # noqa: S608 (a number)
            f"- {self._first:d} + 1 - count(DISTINCT sequence_num) "
            f"AS missing FROM events WHERE sequence_num >= {self._first:d} GROUP BY aggregate_id"
        )
        missing = self._one(f"SELECT coalesce(sum(missing), 0) FROM ({spans})")  # noqa: S608 (as above)
        gaps = self._grouped(
            "{} aggregates miss sequence numbers: {}",
            f"SELECT aggregate_id FROM ({spans}) WHERE missing > 0",  # noqa: S608 (as above)
        )
        return int(missing), tuple(gaps)

    def select(self, request: ReplayRequest, handled: HandledEvents | None) -> int:
        """Choose the events of a request that are not handled yet; return how many there are."""
        if handled is not None:
            self._load_handled(handled)
        wanted, values = _condition(request)
        self._db.execute(
            f"CREATE TABLE chosen AS SELECT {_EVENT_FIELDS} FROM events "  # noqa: S608 (constants)
            f"ANTI JOIN handled USING (event_id, aggregate_id, sequence_num) WHERE {wanted}",
            values,
        )
        return int(self._one("SELECT count(*) FROM chosen"))

    def selected(self, request: ReplayRequest) -> tuple[int, int]:
        """Count the events of a request, handled or not, and the chosen ones of incomplete states.

        The latter follow an event of their aggregate that its time range leaves out unhandled.
        """
        wanted, values = _condition(request)
        query = f"SELECT count(*) FROM events WHERE {wanted}"  # noqa: S608 (constants)
        (count,) = self._db.execute(query, values).fetchall()[0]
        if request.from_ is None and request.to is None:
            return int(count), 0
        always, values = _condition(request.model_copy(update={"from_": None, "to": None}))
        query = (
            "SELECT count(*) FROM chosen JOIN (SELECT aggregate_id, "  # noqa: S608 (constants)
            "min(sequence_num) AS earliest FROM events "
            "ANTI JOIN handled USING (event_id, aggregate_id, sequence_num) "
            f"ANTI JOIN chosen USING (event_id) WHERE {always} GROUP BY aggregate_id) AS others "
            "USING (aggregate_id) WHERE chosen.sequence_num > earliest"
        )
        (follow,) = self._db.execute(query, values).fetchall()[0]
        return int(count), int(follow)

    def _load_handled(self, handled: HandledEvents) -> None:
        self._db.execute(
            "CREATE TABLE kept "
            "(event_id VARCHAR, aggregate_id VARCHAR, sequence_num BIGINT, state VARCHAR, "
            "content_hash VARCHAR)"
        )
        for batch in handled():
            self._db.register("batch", batch)
            self._db.execute("INSERT INTO kept BY NAME SELECT * FROM batch")
            self._db.unregister("batch")
        self._db.execute(
            "INSERT INTO handled SELECT event_id, aggregate_id, sequence_num FROM kept"
        )
        # The last event of each checkpoint has a state, unless its row was deleted.
        self._db.execute(
            "INSERT INTO stateless SELECT aggregate_id FROM kept GROUP BY aggregate_id HAVING "
            "max(sequence_num) IS DISTINCT FROM "
            "max(sequence_num) FILTER (state IS NOT NULL)"
        )
        self._db.execute(
            "INSERT INTO states SELECT aggregate_id, max(sequence_num), count(*), "
            "arg_max(state, sequence_num) FILTER (state IS NOT NULL) "
            "FROM kept GROUP BY aggregate_id"
        )
        self._db.execute(_FIND_REPLACED)
        self._db.execute("DROP TABLE kept")

    def behind(self) -> tuple[int, str]:
        """Count chosen events that a handled one of their aggregate follows; name a few."""
        query = (
            "SELECT event_id FROM chosen JOIN states USING (aggregate_id) "
            "WHERE chosen.sequence_num < states.sequence_num"
        )
        found = self._grouped("{} events: {}", query)
        return self._one(f"SELECT count(*) FROM ({query})"), found[0] if found else ""  # noqa: S608 (a constant)

    def ledger_faults(self) -> tuple[str, ...]:
        """Return why events do not fit what was handled, and the states that it left."""
        replaced = self._grouped(
            "{} events were handled with another content than they have now: {}",
            "SELECT event_id FROM replaced",
        )
        clashes = self._grouped(
            "{} events have an id, or a number in their aggregate, that was handled as another "
            "event: {}",
            "SELECT event_id FROM chosen SEMI JOIN handled USING (event_id) UNION "
            "SELECT event_id FROM chosen SEMI JOIN handled USING (aggregate_id, sequence_num)",
        )
        lost = self._grouped(
            "the states of {} aggregates after their last handled event are gone: {}",
            "SELECT DISTINCT aggregate_id FROM chosen SEMI JOIN stateless USING (aggregate_id)",
        )
        return (*replaced, *clashes, *lost)

    def batches(self, after: ReplayPosition | None, size: int) -> Iterator[list[StoredEvent]]:
        """Yield the chosen events after a position, in order, so many at a time."""
        rank, sequence = after or ("", 0)
        # A cursor of its own: other queries go on while it is read.
        cursor: duckdb.DuckDBPyConnection = self._db.cursor()
        cursor.execute(
            f"SELECT {_EVENT_FIELDS} FROM chosen "  # noqa: S608 (constants)
            "WHERE rank > ? OR (rank = ? AND sequence_num > ?) ORDER BY rank, sequence_num",
            [rank, rank, sequence],
        )
        try:
            while rows := cursor.fetchmany(size):
                yield [StoredEvent(*row) for row in rows]
        finally:
            cursor.close()

    def in_sequence(self) -> Iterator[StoredEvent]:
        """Yield all events by aggregate and sequence number."""
        query = f"SELECT {_EVENT_FIELDS} FROM events ORDER BY aggregate_id, sequence_num"  # noqa: S608 (constants)
        for row in self._db.execute(query).fetchall():
            yield StoredEvent(*row)

    def states(self, aggregates: Sequence[str]) -> dict[str, AggregateState]:
        """Return the newest states of aggregates; those without one are left out."""
        rows = self._db.execute(
            "SELECT aggregate_id, sequence_num, handled, state FROM states "
            "WHERE aggregate_id IN (SELECT unnest(?))",
            [list(aggregates)],
        ).fetchall()
        return {name: AggregateState(*rest) for name, *rest in rows}

    def keep_states(self, states: Mapping[str, AggregateState]) -> None:
        """Replace the newest states of aggregates."""
        import pyarrow as pa

        columns = [list(column) for column in zip(*states.values(), strict=True)]
        kinds = (pa.int64(), pa.int64(), pa.string())
        self._db.register(
            "newest",
            pa.table(
                [
                    pa.array(list(states), pa.string()),
                    *(pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)),
                ],
                names=["aggregate_id", *AggregateState._fields],
            ),
        )
        self._db.execute(
            "DELETE FROM states WHERE aggregate_id IN (SELECT aggregate_id FROM newest)"
        )
        self._db.execute("INSERT INTO states BY NAME SELECT * FROM newest")
        self._db.unregister("newest")

    def close(self) -> None:
        """Free what the events take."""
        self._db.close()

    def _one(self, query: str) -> Any:
        row = self._db.execute(query).fetchone()
        return row[0] if row else 0

    def _grouped(self, text: str, query: str) -> list[str]:
        """Return the text with the number of rows and the first few; nothing without a row."""
        count = self._one(f"SELECT count(*) FROM ({query})")  # noqa: S608 (a constant of this module)
        if not count:
            return []
        found = self._db.execute(f"SELECT * FROM ({query}) ORDER BY 1 LIMIT {_NAMED}").fetchall()  # noqa: S608
        more = ", …" if count > _NAMED else ""
        return [text.format(count, ", ".join(repr(row[0][:_LETTERS]) for row in found) + more)]


def _condition(request: ReplayRequest) -> tuple[str, list[Any]]:
    terms: list[tuple[str, Any]] = []
    if request.aggregate is not None:
        terms.append(("aggregate_id = ?", request.aggregate))
    if request.from_ is not None:
        terms.append(("occurred_us >= epoch_us(?::TIMESTAMPTZ)", request.from_))
    if request.to is not None:
        terms.append(("occurred_us < epoch_us(?::TIMESTAMPTZ)", request.to))
    if request.event_types:
        terms.append(("event_type IN (SELECT unnest(?))", list(request.event_types)))
    condition = " AND ".join(term for term, _ in terms) or "true"
    return condition, [value for _, value in terms]
