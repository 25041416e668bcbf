"""Advice on when not to backfill: a table of cases, judged by what the plan knows (P7).

docs/advice.md lists the cases; a test holds it against this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lakehouse_backfill.core.guards.privacy.rules import expired_partitions
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.tables.table import TableRef


class BackfillFacts(NamedTuple):
    """What a plan knows about whether a backfill is the right answer; None: it is not known.

    `share_of_table` and `error_rate` are shares of rows, from 0 to 1. `past_input` and
    `past_output` are partitions that are older than inputs, or the product, keep rows.
    """

    publish_mode: str = "replace_partitions"
    share_of_table: float | None = None
    error_rate: float | None = None
    has_key: bool = True
    names_rows: bool = False
    is_derived: bool = False
    unwilling: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    is_unused: bool = False
    past_input: tuple[str, ...] = ()
    past_output: tuple[str, ...] = ()


class AdviceCase(NamedTuple):
    """A case in which something else than a backfill may be right, and what that is."""

    name: str
    applies: Callable[[BackfillFacts], bool]
    #: What was seen, formatted with the fields of the facts.
    seen: str
    advice: str


#: Below the first share of wrong rows an error is documented, below the second it is corrected by
#: key; from the third on most rows are wrong.
_FEW_WRONG, _SOME_WRONG, _MOST_WRONG = 0.001, 0.05, 0.5
#: From this share of the table on, a version beside it is safer and easier to compare.
_MOST_OF_TABLE = 0.5
_SEPARATE_MODES = ("versioned", "pointer_swap", "correction_events", "shadow_only")


def _is_wrong_between(least: float, stop: float) -> Callable[[BackfillFacts], bool]:
    return lambda facts: facts.error_rate is not None and least <= facts.error_rate < stop


ADVICE_CASES = (
    AdviceCase(
        "few rows are wrong",
        _is_wrong_between(0, _FEW_WRONG),
        "{error_rate:.3%} of the rows are wrong",
        "document the error for consumers, or correct these keys by correction events",
    ),
    AdviceCase(
        "some rows are wrong",
        lambda facts: (
            _is_wrong_between(_FEW_WRONG, _SOME_WRONG)(facts)
            and facts.has_key
            and facts.publish_mode != "merge"
            and not facts.names_rows
        ),
        "{error_rate:.1%} of the rows are wrong, and rows have a key",
        "change only these rows: publish_mode merge, or target.row_predicate",
    ),
    AdviceCase(
        "most rows are wrong",
        _is_wrong_between(_MOST_WRONG, 2),
        "{error_rate:.0%} of the rows are wrong",
        "a backfill of whole partitions is right",
    ),
    AdviceCase(
        "most of the table",
        lambda facts: (
            (facts.share_of_table or 0) >= _MOST_OF_TABLE
            and facts.publish_mode not in _SEPARATE_MODES
        ),
        "the partitions hold {share_of_table:.0%} of the table's rows",
        "build a new version beside it: publication pinned, with pointer_swap or versioned",
    ),
    AdviceCase(
        "derived view",
        lambda facts: facts.is_derived and (facts.share_of_table or 0) >= 1,
        "all of the table is derived from other products, without warm-up",
        "refresh it by its regular job, or make it a view",
    ),
    AdviceCase(
        "input is past its retention",
        lambda facts: bool(facts.past_input),
        "inputs keep no rows for {past_input}",
        "do not compute from what is left: write correction events from records that were kept",
    ),
    AdviceCase(
        "output is past its retention",
        lambda facts: bool(facts.past_output),
        "the product keeps no rows for {past_output}",
        "document the error: the rows are due to be deleted",
    ),
    AdviceCase(
        "consumers tolerate no restatement",
        lambda facts: bool(facts.unwilling) and facts.publish_mode != "correction_events",
        "history must not change under {unwilling}",
        "agree with them first, or publish correction events",
    ),
    AdviceCase(
        "consumers read a stream",
        lambda facts: bool(facts.streams) and facts.publish_mode not in _SEPARATE_MODES,
        "{streams} follow the table's snapshots, and see replaced rows again or not at all",
        "publish correction events, or a new version",
    ),
    AdviceCase(
        "nobody relies on it",
        lambda facts: facts.is_unused,
        "the contract names no consumer",
        "document the error, and backfill when somebody needs the rows",
    ),
)


def advise(facts: BackfillFacts) -> tuple[str, ...]:
    """Return, for each case that applies, what was seen and what may be better than a backfill."""
    shown = {
        name: partitions.describe_labels(value) if isinstance(value, tuple) else value
        for name, value in facts._asdict().items()
    }
    return tuple(
        f"when not to backfill, {case.name}: {case.seen.format(**shown)}; {case.advice}"
        for case in ADVICE_CASES
        if case.applies(facts)
    )


def advise_on_run(
    context: Context, resolved: ResolvedManifest, rows_there: int | None
) -> tuple[str, ...]:
    """Return the advice on a run, from metadata; `rows_there` are those of its partitions now."""
    manifest, contract = resolved.manifest, resolved.contract
    now, consumers = context.clock.now(), contract.consumers
    kept = contract.retention_days
    days = [pin.privacy.retention_days for pin in resolved.sources if pin.privacy]
    shortest = min((one for one in days if one is not None), default=None)
    facts = BackfillFacts(
        publish_mode=manifest.target.publish_mode,
        share_of_table=_share_of_table(context, resolved, rows_there),
        error_rate=manifest.run.error_rate,
        has_key=bool(contract.key),
        names_rows=manifest.target.row_predicate is not None,
        is_derived=_is_derived(context, resolved),
        unwilling=tuple(one.name for one in consumers or () if not one.tolerates_restatement),
        streams=tuple(one.name for one in consumers or () if one.reads == "stream"),
        is_unused=consumers == (),
        past_input=expired_partitions(resolved.scope, shortest, now) if shortest else (),
        past_output=(
            expired_partitions(resolved.scope, kept, now) if isinstance(kept, int) else ()
        ),
    )
    return advise(facts)


def _share_of_table(
    context: Context, resolved: ResolvedManifest, rows_there: int | None
) -> float | None:
    """Return the share of the table's rows that the run replaces; the summary counts them all."""
    target = resolved.target
    if target.snapshot_id is None or not rows_there:
        return None
    ref = TableRef(table=target.table, at=str(target.snapshot_id))
    total = context.tables.resolve(ref).summary.get("total-records", "")
    return min(1.0, rows_there / int(total)) if total.isdigit() and int(total) else None


def _is_derived(context: Context, resolved: ResolvedManifest) -> bool:
    """Return whether all inputs are products of this toolkit, read without warm-up."""
    return all(
        not pin.warm_up_days and context.versions.of_table(pin.table) for pin in resolved.sources
    )
