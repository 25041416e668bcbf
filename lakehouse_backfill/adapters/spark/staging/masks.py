"""Masks columns of a transform's output; counts stored values that are not what a mask makes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import (
    ColumnPrivacy,
    MaskedColumn,
    MaskKey,
    MaskKind,
    MaskSources,
    derived_key,
)
from lakehouse_backfill.errors import ConfigError

SecretReader = Callable[[MaskKey], bytes]


def mask_output(frame: DataFrame, contract: Contract, read_secret: SecretReader) -> DataFrame:
    """Return the output with each masked column replaced by its masks; nulls stay null."""
    masked = contract.masked_columns
    if not masked:
        return frame
    secret = _mask_secret(contract, read_secret)
    types = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(
        *(
            _masked(name, masked[name], secret).cast(types[name]).alias(name)
            if name in masked
            else quoted_column(name)
            for name in frame.columns
        )
    )


def _mask_secret(contract: Contract, read_secret: SecretReader) -> bytes:
    key = contract.privacy.key if contract.privacy else None
    return derived_key(read_secret(key), "masks") if key else b""


def refuse_secret(key: MaskKey) -> NoReturn:
    """Raise ConfigError: nothing was given that reads the secret."""
    raise ConfigError(f"the {key.place} is not read here", fix="open the lake as a Project")


def _masked(name: str, declared: ColumnPrivacy, key: bytes) -> Column:
    column = quoted_column(name)
    if declared.mask == "null":
        return F.lit(None)
    if declared.mask == "truncate":
        return F.substring(column, 1, declared.length or 0)
    # The key is in the function, not in a literal: plans, which Spark logs, show literals.
    return F.udf(_mask_function(declared.mask or "hash", key), StringType(), useArrow=False)(column)


def _mask_function(kind: MaskKind, key: bytes) -> Callable[[str | None], str | None]:
    """Return `privacy.mask_text` for workers, which may lack this package: only the stdlib."""

    def mask(value: str | None) -> str | None:
        if value is None:
            return None
        mark = hmac.new(key, f"{kind}\0{value}".encode(), hashlib.sha256).digest()
        if kind == "hash":
            return mark.hex()
        return "tok_" + base64.b32encode(mark[:16]).decode("ascii").rstrip("=").lower()

    return mask


def count_misshapen(
    stored: DataFrame,
    masked: Mapping[str, ColumnPrivacy],
    raw: Mapping[str, Iterable[DataFrame]],
) -> tuple[MaskedColumn, ...]:
    """Count, in stored rows, what the masks did not make, and what inputs hold as raw values.

    `raw` has one column of raw values for each input column that a masked column comes from.
    """
    aggregates: list[Column] = []
    for number, (name, declared) in enumerate(masked.items()):
        column = quoted_column(name)
        aggregates += [
            F.count(column).alias(f"n{number}"),
            F.count(F.when(_is_misshapen(column, declared), F.lit(1))).alias(f"m{number}"),
        ]
    counts = stored.agg(*aggregates).collect()[0]
    return tuple(
        MaskedColumn(
            column=name,
            values=int(counts[f"n{number}"]),
            misshapen=int(counts[f"m{number}"]),
            raw=_count_raw(stored, name, tuple(raw.get(name, ()))),
        )
        for number, name in enumerate(masked)
    )


def _is_misshapen(column: Column, declared: ColumnPrivacy) -> Column:
    if declared.mask == "null":
        return column.isNotNull()
    if declared.mask == "truncate":
        return F.length(column) > F.lit(declared.length or 0)
    # With `$`, a line break at the end would pass.
    return ~column.rlike(rf"\A(?:{declared.shape})\z")


def _count_raw(stored: DataFrame, name: str, inputs: tuple[DataFrame, ...]) -> int | None:
    """Count the stored rows whose value an input holds; None without an input to compare with."""
    if not inputs:
        return None
    values = reduce(DataFrame.union, (frame.toDF("lhb_raw") for frame in inputs)).distinct()
    column = stored.select(quoted_column(name).alias("lhb_stored"))
    return column.join(values, F.col("lhb_stored") == F.col("lhb_raw"), "left_semi").count()


@dataclass(frozen=True)
class MaskRepetition:
    """Masks of the pinned inputs, computed again and compared with the stored rows.

    A stored row is compared with the input's rows that have the same key columns, as far as these
    are copies of the same input; without such, with all of its rows. With the whole key, multisets
    are compared: of rows with one key, no input row stands for more stored rows than there are of
    it. With a part of the key an input row may stand for many, as a join makes them: a stored value
    is known where the rows of the input with that part have one value, else it is `ambiguous`.
    """

    contract: Contract
    sources: MaskSources
    read_secret: SecretReader
    read_input: Callable[[str], DataFrame]
    read_stored: Callable[[tuple[str, ...]], DataFrame]

    def covers(self, column: str) -> tuple[str, dict[str, str]] | None:
        """Return the input of a masked column, and its columns by those of the output.

        None when the column is no copy of one column of one input.
        """
        copies = self.sources.copies
        name, _, origin = copies.get(column.casefold(), "").partition(".")
        if not origin or not self.sources.partitions:
            return None
        keys = {
            key: copies[key.casefold()].removeprefix(f"{name}.")
            for key in self.contract.key
            if copies.get(key.casefold(), "").startswith(f"{name}.")
        }
        return name, {**keys, column: origin}

    def compare(self, found: MaskedColumn) -> MaskedColumn:
        """Return what was found of a column, with the rows that have another mask."""
        column, covered = found.column, self.covers(found.column)
        if self.contract.masked_columns[column].mask == "null":
            return found  # all of it was looked at
        if covered is None:
            unseen = self.sources.unseen or "it is no copy of one column of an input"
            return found.model_copy(update={"unseen": unseen})
        name, columns = covered
        present = self.read_stored(self.sources.partitions).where(quoted_column(column).isNotNull())
        ours = _counted(present.select(*_numbered("own", map(quoted_column, columns))))
        same = [
            F.col(f"lhb_own_{at}").eqNullSafe(F.col(f"lhb_made_{at}")) for at in range(len(columns))
        ]
        made = self._made(name, columns)
        both = ours.join(made, reduce(and_, same), "left")
        has_whole_key = bool(self.contract.key) and set(self.contract.key) <= set(columns)
        known = F.coalesce(F.col("lhb_made_rows"), F.lit(0))
        covered_rows = known if has_whole_key else F.when(known > 0, F.col("lhb_own_rows"))
        lacking = F.col("lhb_own_rows") - F.coalesce(covered_rows, F.lit(0))
        counts = [F.sum(F.greatest(lacking, F.lit(0)))]
        if not has_whole_key:
            both = _with_variants(both, made)
            is_one_of_several = (known > 0) & (F.col("lhb_variants") > 1)
            counts.append(F.sum(F.when(is_one_of_several, F.col("lhb_own_rows"))))
        foreign, *ambiguous = (int(total or 0) for total in both.agg(*counts).collect()[0])
        return found.model_copy(
            update={
                "foreign": foreign,
                "made_of": f"{name}.{columns[column]}",
                "by": tuple(own for own in columns if own != column),
                "unseen": self.sources.unseen,
                "ambiguous": sum(ambiguous),
            }
        )

    def _made(self, name: str, columns: Mapping[str, str]) -> DataFrame:
        """Return the values that columns of an input have in the output, with counts of rows.

        Each different value is masked once.
        """
        secret, masked = _mask_secret(self.contract, self.read_secret), self.contract.masked_columns
        given = self.read_input(name).select(
            *(quoted_column(origin).alias(own) for own, origin in columns.items())
        )
        values = (
            _masked(own, masked[own], secret) if own in masked else quoted_column(own)
            for own in columns
        )
        rows = given.groupBy(*given.columns).agg(F.count(F.lit(1)).alias("lhb_rows"))
        made = rows.select(*_numbered("made", values), "lhb_rows")
        names = made.columns[:-1]
        return made.groupBy(*names).agg(F.sum("lhb_rows").alias("lhb_made_rows"))


def _with_variants(both: DataFrame, made: DataFrame) -> DataFrame:
    """Return the rows with how many different values their part of the key has in the input."""
    keys = made.columns[:-2]  # The last ones are the masked value and the number of rows.
    variants = made.groupBy(*(F.col(key).alias(f"{key}_part") for key in keys)).agg(
        F.count(F.lit(1)).alias("lhb_variants")
    )
    same = [F.col(key).eqNullSafe(F.col(f"{key}_part")) for key in keys]
    return both.join(variants, reduce(and_, same) if same else F.lit(1) == 1, "left")


def _counted(own: DataFrame) -> DataFrame:
    return own.groupBy(*own.columns).agg(F.count(F.lit(1)).alias("lhb_own_rows"))


def _numbered(prefix: str, columns: Iterable[Column]) -> list[Column]:
    return [column.alias(f"lhb_{prefix}_{at}") for at, column in enumerate(columns)]
