"""Reads Parquet files of an old place as rows of the table that they become; judges each file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.sources.parquet_folder.places import (
    ListedFile,
    OldFolder,
    path_values,
)
from lakehouse_backfill.core.migration.fit import (
    FileFacts,
    TableShape,
    batch_rows,
    find_fault,
    find_rewrite_cause,
    fit_column,
)
from lakehouse_backfill.domain.sources.migration import MigrationPart, MigrationSurvey
from lakehouse_backfill.errors import Conflict, RejectedInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

    from lakehouse_backfill.ports.migration import PartitionRows, RowSums
    from lakehouse_backfill.ports.system import Progress

_MAX_REASON = 300
#: Digits of a decimal that holds every whole number with all scales of a column.
_ANY_DIGITS = 76


@dataclass(frozen=True)
class ParquetPlace:
    """`ports.migration.OldPlace` for a folder of Parquet files."""

    folder: OldFolder
    schema: pa.Schema
    table: TableShape
    new_sums: Callable[[], RowSums]
    progress: Progress
    copies_all: bool = False
    is_lasting: bool = True

    @property
    def name(self) -> str:
        """Where the files lie."""
        return self.folder.base

    def survey(self) -> MigrationSurvey:
        """Read every file once; files that are bad are named, each with the first reason."""
        listed = self.folder.list_files()
        self.progress.start(f"reading {self.name}", len(listed), "files")
        parts = []
        try:
            for file in listed:
                parts.append(self._judge(file))
                self.progress.advance(1, rows=parts[-1].rows)
        finally:
            self.progress.finish()
        return MigrationSurvey(tuple(parts))

    def batches(self, part: MigrationPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with the columns and types of the table."""
        try:
            with self._open(part.name) as file:
                yield from self._rows(part.name, file)
        except (RejectedInput, FileNotFoundError) as error:
            raise Conflict(
                f"{part.name} changed since it was read first: {error}",
                state="no row of it is in the table",
                fix="stop whoever writes there; take the migration back (--undo), begin again",
            ) from error

    def changed(self, parts: Iterable[MigrationPart]) -> tuple[str, ...]:
        """Return which files have another size, time of change or footer, or are gone.

        A bad file may be gone: no row of it is migrated.
        """
        return tuple(part.name for part in parts if self._is_changed(part))

    def _is_changed(self, part: MigrationPart) -> bool:
        found = self.folder.read_state(part.name)
        if part.action == "reject":
            return found is not None and found[:2] != (part.size_bytes, part.modified)
        return found != (part.size_bytes, part.modified, part.footer)

    def added(self, survey: MigrationSurvey) -> tuple[str, ...]:
        """Return the files that came later."""
        known = {part.name for part in survey.parts}
        return tuple(file.name for file in self.folder.list_files() if file.name not in known)

    def _judge(self, listed: ListedFile) -> MigrationPart:
        known = {
            "name": listed.name, "size_bytes": listed.size_bytes, "modified": listed.modified,
        }  # fmt: skip
        try:
            if listed.fault:
                raise _bad(listed.fault)
            footer = self.folder.footer_digest(listed.name, listed.size_bytes)
            sums, not_numbers = self.new_sums(), set[str]()
            with self._open(listed.name) as file:
                facts = self._facts(listed.name, file)
                fault = find_fault(facts, self.table) or self._nested_fault(file.schema_arrow)
                if fault:
                    raise _bad(fault)
                for batch in self._rows(listed.name, file):
                    _add(sums, batch)
                    not_numbers |= _columns_with_nan(batch, self.table.identity)
                found = sums.groups()
                rows = sum(one.checksum.rows for one in found.values())
                if rows != file.metadata.num_rows:
                    raise _bad(f"its footer says {file.metadata.num_rows} rows, it has {rows}")
        except RejectedInput as error:
            return MigrationPart(**known, action="reject", because=error.problem)
        except FileNotFoundError:
            return MigrationPart(**known, action="reject", because="it vanished while it was read")
        part = {**known, "footer": footer, "rows": rows}
        part["sums"] = {label: one.checksum for label, one in found.items()}
        placed = self._placed(part, facts, found)
        if placed.action == "rewrite" and not_numbers:
            because = f"column {min(not_numbers)} has NaN, which is no partition that can be "
            because += f"written, and the file cannot stay as it is: {placed.because}"
            return MigrationPart(**known, action="reject", because=because)
        return placed

    def _placed(
        self, part: dict[str, Any], facts: FileFacts, found: dict[str, PartitionRows]
    ) -> MigrationPart:
        """Decide whether a good file stays where it is."""
        cause = find_rewrite_cause(facts, self.table)
        if cause is None and len(found) > 1:
            cause = f"its rows belong to {len(found)} partitions"
        if cause is None and not found:
            cause = "it has no rows"
        if cause is None and self.copies_all:
            cause = "copy_files: always"
        if cause is not None:
            return MigrationPart(**part, action="rewrite", because=cause)
        (own,) = found.values()
        return MigrationPart(
            **part, action="adopt", partition=own.values, path=self.folder.location(part["name"])
        )

    def _open(self, name: str) -> pq.ParquetFile:
        """Open a file; raises RejectedInput for one that is no Parquet file that can be read."""
        import pyarrow as pa
        from pyarrow import parquet as pq

        try:
            # As nanoseconds, INT96 values after the year 2262 would silently be others.
            return pq.ParquetFile(
                self.folder.path(name),
                filesystem=self.folder.store,
                coerce_int96_timestamp_unit="us",
            )
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
            self.folder.require_bytes(name)
            raise _bad(_describe(error)) from error

    def _facts(self, name: str, file: pq.ParquetFile) -> FileFacts:
        schema, stored = file.schema_arrow, file.schema
        columns = [stored.column(number) for number in range(len(stored))]
        if len(set(schema.names)) < len(schema.names):
            raise _bad("a column name stands in it twice")
        try:
            pairs = path_values(name)
        except UnicodeDecodeError as error:
            raise _bad("its path is no UTF-8") from error
        in_path = frozenset(column for column, _ in pairs)
        if len(in_path) < len(pairs):
            raise _bad("its path names a column twice")
        lost = sorted(self._columns_above().difference(schema.names, in_path))
        if lost:
            raise _bad(f"column {lost[0]} is only in the path above the location")
        old = frozenset(c.path for c in columns if c.physical_type == "INT96")
        inner = sorted(old.difference(schema.names))
        if inner:
            raise _bad(f"its nested column {inner[0]} is stored as INT96")
        return FileFacts(
            types={field.name: str(field.type) for field in schema},
            leaves=tuple(column.path for column in columns),
            has_field_ids=any(_has_ids(field) for field in schema),
            in_path=in_path,
            location=self.folder.location(name),
            old_instants=old,
        )

    def _columns_above(self) -> frozenset[str]:
        """Return the columns of which the location is a partition folder, or lies in one."""
        return frozenset(name for name, _ in path_values(f"{self.folder.root}/")) & frozenset(
            self.schema.names
        )

    def _rows(self, name: str, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """Yield rows in the table's columns and types; raises RejectedInput for a bad value."""
        import pyarrow as pa

        facts = self._facts(name, file)
        fixed = {column: self._path_scalar(column, text) for column, text in path_values(name)}
        try:
            if facts.old_instants:
                self._require_microseconds(name, file, sorted(facts.old_instants))
            for group in range(file.num_row_groups):
                found = file.metadata.row_group(group)
                size = min(batch_rows(found.num_rows, found.total_byte_size), _PIECE_ROWS)
                for batch in _join_pieces(file.iter_batches(size, [group], use_threads=False)):
                    yield self._as_table(batch, fixed, facts.old_instants)
        except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
            self.folder.require_bytes(name)
            raise _bad(_describe(error)) from error

    def _require_microseconds(self, name: str, file: pq.ParquetFile, columns: list[str]) -> None:
        """Raise RejectedInput when INT96 columns hold more than microseconds."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import parquet as pq

        # Each value takes 12 bytes.
        size = batch_rows(1, 12 * len(columns))
        options = {"batch_size": size, "columns": columns, "use_threads": False}
        with pq.ParquetFile(self.folder.path(name), filesystem=self.folder.store) as whole:
            pairs = zip(file.iter_batches(**options), whole.iter_batches(**options), strict=True)
            for cut, exact in pairs:
                for column in columns:
                    # Nanoseconds of instants that are out of their range wrap around, as these do.
                    found = pc.multiply(cut.column(column).cast(pa.int64()), 1000)
                    if not found.equals(exact.column(column).cast(pa.int64())):
                        wanted = self.schema.field(column).type
                        raise _bad(f"column {column} has a value that does not fit into {wanted}")

    def _nested_fault(self, stored: pa.Schema) -> str | None:
        """Return which nested column has another form than the contract says."""
        for field in stored:
            wanted = self.schema.field(field.name).type
            if not _is_nested_fit(field.type, wanted):
                return f"column {field.name} is {field.type} in the file and {wanted} in the table"
        return None

    def _as_table(
        self, batch: pa.RecordBatch, fixed: dict[str, pa.Scalar], old_instants: frozenset[str]
    ) -> pa.RecordBatch:
        import pyarrow as pa

        columns = []
        for field in self.schema:
            if field.name in batch.schema.names:
                column = batch.column(field.name)
                column = _exact(column, field, is_utc=field.name in old_instants)
                if field.name in fixed and not _all_equal(column, fixed[field.name]):
                    raise _bad(f"column {field.name} contradicts the path")
            elif field.name in fixed:
                column = pa.repeat(fixed[field.name], batch.num_rows)
            else:
                column = pa.nulls(batch.num_rows, field.type)
            if field.name in self.table.required and column.null_count:
                raise _bad(f"the required column {field.name} has a null")
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=_nullable(self.schema))

    def _path_scalar(self, column: str, text: str | None) -> pa.Scalar:
        """Return the value of a path in the type of its column."""
        import pyarrow as pa

        kind = self.schema.field(column).type
        if text is None:
            return pa.scalar(None, kind)
        try:
            return pa.scalar(text, pa.string()).cast(kind)
        except (pa.ArrowException, NotImplementedError) as error:
            raise _bad(f"its path has no {kind} for {column}") from error


def _is_nested_fit(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether no inner value is dropped or becomes another one; flat columns are no matter.

    Arrow's cast drops fields of a struct, rounds inner numbers, and takes local times for UTC.
    """
    import pyarrow as pa

    types = pa.types
    if not types.is_nested(stored) or not types.is_nested(wanted):
        return True
    if types.is_struct(stored) and types.is_struct(wanted):
        kinds = {wanted.field(number).name: wanted.field(number) for number in range(len(wanted))}
        pairs = [(field.type, kinds.get(field.name)) for field in stored]
        return all(other is not None and _is_inner_fit(own, other.type) for own, other in pairs)
    if types.is_map(stored) and types.is_map(wanted):
        return _is_inner_fit(stored.key_type, wanted.key_type) and _is_inner_fit(
            stored.item_type, wanted.item_type
        )
    if types.is_map(stored) or types.is_map(wanted):
        return False
    if types.is_struct(stored) or types.is_struct(wanted):
        return False
    return _is_inner_fit(stored.value_type, wanted.value_type)


def _is_inner_fit(stored: pa.DataType, wanted: pa.DataType) -> bool:
    return fit_column(str(stored), str(wanted)) != "clash" and _is_nested_fit(stored, wanted)


def _has_ids(field: pa.Field) -> bool:
    """Return whether a field, or one within it, has a field id: one is enough for readers."""
    import pyarrow as pa

    kind = field.type
    is_nested = pa.types.is_nested(kind)
    return b"PARQUET:field_id" in (field.metadata or {}) or any(
        _has_ids(kind.field(number)) for number in range(kind.num_fields if is_nested else 0)
    )


#: Rows that are read before their size is known: a value that a file holds once may be in each.
_PIECE_ROWS = 512


def _join_pieces(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches that are full by their number, or by what they take in memory."""
    import pyarrow as pa

    held, rows, size = list[pa.RecordBatch](), 0, 0
    for piece in pieces:
        held.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= batch_rows(rows, size):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _add(sums: RowSums, batch: pa.RecordBatch) -> None:
    try:
        sums.add(batch)
    except (OverflowError, ValueError) as error:
        raise _bad("a value of its partition is out of range (years 1 to 9999)") from error


def _exact(column: pa.Array, field: pa.Field, *, is_utc: bool) -> pa.Array:
    """Cast without loss; raises RejectedInput, which names the column and quotes no value."""
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    try:
        if _holds_texts(column.type):
            column.validate(full=True)  # texts that are no UTF-8
        if column.type == field.type:
            return column
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_integer(column.type) and pa.types.is_decimal(field.type):
            # Arrow asks whether the type fits, here it is each value.
            column = column.cast(pa.decimal256(_ANY_DIGITS, field.type.scale))
        if is_utc and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp(column.type.unit, "UTC"))
            return column.cast(pa.timestamp("us", "UTC")).cast(field.type)
        return column.cast(field.type)
    except (pa.ArrowException, NotImplementedError) as error:
        raise _bad(
            f"column {field.name} has a value that does not fit into {field.type}"
        ) from error


def _holds_texts(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = ("is_string", "is_large_string", "is_string_view", "is_nested")
    return any(getattr(pa.types, name)(kind) for name in tests)


def _columns_with_nan(batch: pa.RecordBatch, names: Iterable[str]) -> set[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    return {
        name
        for name in names
        if pa.types.is_floating(batch.schema.field(name).type)
        and pc.any(pc.is_nan(batch.column(name))).as_py()
    }


def _all_equal(column: pa.Array, value: pa.Scalar) -> bool:
    import pyarrow.compute as pc

    if not value.is_valid:
        return bool(column.null_count == len(column))
    return column.null_count == 0 and bool(pc.all(pc.equal(column, value)).as_py() is not False)


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _describe(error: Exception) -> str:
    """Return what is wrong with a file, without its values."""
    text = " ".join(str(error).split())
    lowered = text.lower()
    if "encrypt" in lowered or "decrypt" in lowered:
        return "it is encrypted"
    if "0 bytes" in lowered or "file size is 0" in lowered:
        return "it has no bytes"
    if "magic bytes" in lowered or "footer" in lowered or "too small" in lowered:
        return "it is no Parquet file, or is cut off"
    return f"it cannot be read: {text.partition(chr(39))[0][:_MAX_REASON]}".strip()


def _bad(reason: str) -> RejectedInput:
    return RejectedInput(reason, state="no row of the file is migrated", fix="write it again")
