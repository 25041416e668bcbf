"""Heads of logs that are kept outside the lake, and their comparison with the lake.

Whoever can write to the control tables can make a whole history anew, with all its hashes. The
anchor holds some of the hashes of the old one, which the new one lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import PROGRAM
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import EventChains, ProductRows
from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event

#: What is anchored of a run and of a product: from then on it must not change unnoticed.
_ANCHORED_VERBS = frozenset(
    {"accept", "carry acceptance", "reject", "finish publishing", "roll back"}
)
_ANCHORED_ACTIONS = frozenset({"publish", "rollback"})


def keep_heads(context: Context, run_ids: Iterable[str], products: Iterable[str] = ()) -> None:
    """Keep the heads of runs and products in the anchor, if there is one; a repeat does nothing.

    Raises EnvironmentDown, which says what has happened and what repeats the attempt, when the
    anchor cannot be written: what was decided or published stays so.
    """
    if context.anchor is None:
        return
    runs = tuple(dict.fromkeys(run_ids))
    records = [_run_record(context, context.runs.events(run_id)) for run_id in runs]
    records = [record for record in records if record.head]  # events of older releases have none
    for product in dict.fromkeys(products):
        records += _product_records(context, context.versions.history(product)[::-1])
    try:
        for record in records:
            context.anchor.keep(record)
    except errors.EnvironmentDown as error:
        again = f"recover {runs[0]}" if runs else "recover --all"
        raise errors.EnvironmentDown(
            f"it is done, but its record was not kept outside the lake: {error.problem}",
            state="what was decided, published or rolled back stays so; until it is anchored, a "
            "rewritten log of it is not found",
            fix=f"{error.fix}; then {PROGRAM} {again}",
        ) from error


def missing_records(
    context: Context, run_id: str | None, product: str | None
) -> Iterator[AnchorRecord]:
    """Yield the records that the anchor lacks: of one run and its product, or of everything."""
    if context.anchor is None:
        return
    kept = context.anchor.names()
    chains: EventChains = (
        context.audit.chains() if run_id is None else {run_id: context.runs.events(run_id)}
    )
    for chain in chains.values():
        worthy = [event.seq for event in chain if event.verb in _ANCHORED_VERBS]
        since = [event for event in chain if worthy and event.seq >= worthy[-1] and event.hash]
        if since and not kept & {_run_record(context, chain[: e.seq]).name for e in since}:
            yield _run_record(context, chain)
    named = {event.product for chain in chains.values() for event in chain[-1:]}
    for name in sorted({product} if product is not None else named):
        rows = context.versions.history(name)[::-1]
        acts = [at for at, row in enumerate(rows) if row.action in _ANCHORED_ACTIONS]
        if acts and not kept & {
            record.name
            for stop in range(acts[-1] + 1, len(rows) + 1)
            for record in _product_records(context, rows[:stop])
        }:
            yield from _product_records(context, rows)


def require_kept_history(
    context: Context, product: str, run_ids: Iterable[str], act: str = "published"
) -> None:
    """Raise Tampered when the anchor holds heads of the runs or the product that the lake lacks.

    A rejection that was removed from the log, or a log that was made anew, opens no publication in
    prod, and no rollback. Nothing is asked elsewhere, and where there is no anchor. Raises
    EnvironmentDown when it does not answer.
    """
    environment = context.profile.environment
    if context.anchor is None or environment not in FOUR_EYES_ENVIRONMENTS:
        return
    try:
        # Read first: what is anchored while the logs are read is then in the logs.
        records = context.anchor.records()
    except errors.EnvironmentDown as error:
        error.state = f"nothing was {act}: the anchor could not be asked"
        raise
    chains = {run_id: context.runs.events(run_id) for run_id in run_ids}
    subjects = {product, *chains}
    products: ProductRows = {product: (context.versions.history(product)[::-1], None)}
    known = [record for record in records if record.subject in subjects]
    fault = find_fault(known, environment, chains, products)
    if fault is not None:
        raise errors.Tampered(
            fault,
            state=f"nothing was {act}",
            fix="lakehouse-backfill audit verify --anchor",
        )


def find_fault(
    records: Sequence[AnchorRecord], environment: str, chains: EventChains, products: ProductRows
) -> str | None:
    """Return the first record whose head the lake does not hold at its place any more."""
    for record in sorted(records, key=lambda one: (one.subject, one.count)):
        if record.environment != environment:
            continue
        is_run = record.kind == "run"
        heads = (
            [event.hash for event in chains.get(record.subject, ())]
            if is_run
            else [row.seal for row in products.get(record.subject, ((), None))[0]]
        )
        unit = "events" if is_run else "rows of versions"
        if len(heads) < record.count:
            return (
                f"{record.subject} has {len(heads)} {unit}; the anchor knows of {record.count} at "
                f"{record.at}: the newest were removed"
            )
        if heads[record.count - 1] != record.head:
            return (
                f"{record.subject}: the hash of number {record.count} of its {unit} is not "
                f"{record.head[:12]}…, which the anchor kept at {record.at}: its history was "
                "rewritten"
            )
    return None


def _run_record(context: Context, chain: Sequence[Event]) -> AnchorRecord:
    newest = chain[-1]
    return _record(context, "run", newest.run_id, newest.seq, newest.hash)


def _product_records(context: Context, rows: Sequence[Publication]) -> list[AnchorRecord]:
    """Return the record of the newest row; none without rows, or if it has no seal yet."""
    if not rows or not rows[-1].seal:
        return []
    return [_record(context, "product", rows[-1].product, len(rows), rows[-1].seal)]


def _record(context: Context, kind: str, subject: str, count: int, head: str) -> AnchorRecord:
    return AnchorRecord.model_validate(
        {
            "kind": kind,
            "subject": subject,
            "count": count,
            "head": head,
            "environment": context.profile.environment,
            "at": context.clock.now().isoformat(),
        }
    )
