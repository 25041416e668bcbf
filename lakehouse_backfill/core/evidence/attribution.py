"""Deciding why a row changed, from what it was in states that differ by one input.

Each factor is tried in two ways: alone on the old side, and all but it on the new side. So the
answer does not depend on an order in which inputs would be swapped.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from lakehouse_backfill.core.planning import code_identity
from lakehouse_backfill.core.versions import publications
from lakehouse_backfill.domain.attribution import CauseClass, ComparedState, Factor
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication

#: The value of a state in which the row is absent.
ABSENT_ROW = -1
UNEXPLAINED_FACTOR = Factor(cause="unexplained")
LIVE_WRITE_FACTOR = Factor(cause="live_write")
#: Rows deleted on the target by a live commit, or left out because something names them.
DELETED_FACTOR = Factor(cause="deletion", input="target")
EXCLUDED_FACTOR = Factor(cause="deletion", input="tombstones")


def states_to_compute(count: int) -> tuple[ComparedState, ...]:
    """List the states to compute for so many factors: all old, each alone, all but one, all new."""
    whole = frozenset(range(count))
    wanted = [frozenset[int](), *(frozenset({place}) for place in range(count))]
    wanted += [whole - {place} for place in range(count)] + [whole]
    return tuple(ComparedState("computed", swapped) for swapped in dict.fromkeys(wanted))


def find_factors(
    states: Sequence[ComparedState], values: Sequence[int], factors: Sequence[Factor]
) -> tuple[Factor, ...]:
    """Name what changed a row that is not the same in the first and in the last state.

    More than one: each took part. `UNEXPLAINED` stands for a difference between what a run left
    and what its own code makes of its own inputs.
    """
    of = dict(zip(states, values, strict=True))
    replaced, candidate = of[ComparedState("replaced")], of[ComparedState("candidate")]
    whole = ComparedState("computed", frozenset(range(len(factors))))
    start, final = of[ComparedState("computed")], of[whole]
    published = of.get(ComparedState("published"), replaced)
    was_kept, kept = of.get(ComparedState("was_kept"), start), of.get(ComparedState("kept"), final)
    found: list[Factor] = []
    if replaced != published:
        found.append(DELETED_FACTOR if replaced == ABSENT_ROW else LIVE_WRITE_FACTOR)
    if published != was_kept:
        found.append(UNEXPLAINED_FACTOR)
    if was_kept != start:
        found.append(EXCLUDED_FACTOR)
    # Where the row is left out, it makes no difference what it would be.
    if start != final and not (kept == ABSENT_ROW != final):
        tried = {state.swapped: value for state, value in of.items() if state.kind == "computed"}
        named = [factors[place] for place in _decisive_factors(tried, len(factors))]
        found += named or [UNEXPLAINED_FACTOR]
    if kept != final:
        found.append(EXCLUDED_FACTOR)
    if candidate != kept:
        found.append(UNEXPLAINED_FACTOR)
    return tuple(dict.fromkeys(found))


def _decisive_factors(tried: Mapping[frozenset[int], int], count: int) -> list[int]:
    """Name the factors without which the row would not be what it is, or that alone make it so.

    A state that could not be computed says nothing. Factors of which any two do, but none alone,
    are all named; so are those beside the only one that is needed when it does not do alone. None
    are named when that is not certain.
    """
    places, whole = range(count), frozenset(range(count))
    start, final = tried[frozenset()], tried[whole]
    alone = {place: tried.get(frozenset({place})) for place in places}
    without = {place: tried.get(whole - {place}) for place in places}
    enough = {place for place in places if alone[place] == final}
    needed = {place for place in places if without[place] not in (None, final)}
    does_alone = all(alone[place] in (None, final) for place in needed)
    # Of two or more that are needed, no state tells whether they do without the others.
    if enough or len(needed) > 1 or (needed and does_alone):
        return sorted(needed | enough)
    moved = {place for place in places if alone[place] not in (None, start)}
    is_certain = None not in (*alone.values(), *without.values())
    if moved - needed:
        return sorted(needed | moved)
    return list(places) if is_certain else []


def classify_factors(factors: Iterable[Factor]) -> CauseClass:
    """Give the class under which a row is counted; what is partly unexplained is unexplained."""
    causes = {factor.cause for factor in factors}
    if "unexplained" in causes or not causes:
        return "unexplained"
    return causes.pop() if len(causes) == 1 else "several"


def sample_partitions(changed: Mapping[str, int], most: int, seed: str) -> tuple[str, ...]:
    """Choose partitions: half of them the most changed, the others drawn by the seed.

    The same seed chooses the same ones; up to `most` changed partitions are all taken.
    """
    ordered = sorted(changed, key=lambda label: (-changed[label], label))
    first = ordered[: math.ceil(most / 2)]
    others = sorted(ordered[len(first) :])
    drawn = random.Random(seed).sample(others, min(most - len(first), len(others)))  # noqa: S311 (a sample, no secret)
    chosen = {*first, *drawn}
    return tuple(label for label in changed if label in chosen)


def publication_of_partition(
    history: Sequence[Publication], plan: Plan, label: str
) -> Publication | None:
    """Give the publication whose rows readers had in a partition when the run was planned.

    None: no run made them, or what it made went back since.
    """
    known = tuple(row for row in history if row.at <= plan.created_at and row.run_id != plan.run_id)
    newest = next((row for row in known if row.action in publications.ACCEPTED_ACTIONS), None)
    if newest is None:
        return None
    seen = publications.runs_by_version(known)[newest.version]
    for row in known:
        if row.action != "publish" or row.run_id not in seen or row.scope is None:
            continue
        if label in row.scope.partitions:
            _, gone = publications.rolled_back_since(known, str(row.run_id))
            if label not in gone:
                return row
    return None


def is_same_code(old: Plan, new: Plan) -> bool:
    """Tell whether two runs do the same with equal inputs, as far as files and intent say."""
    return _code(old) == _code(new)


def _code(plan: Plan) -> tuple[object, ...]:
    resolved, manifest = plan.resolved, plan.resolved.manifest
    target = manifest.target
    reads = sorted(
        (pin.name, pin.range, pin.warm_up_days, pin.cool_down_days) for pin in resolved.sources
    )
    return (
        code_identity.code_files(resolved), manifest.transform, target.row_predicate, target.merge,
        target.publish_mode == "merge", target.schema_change, [str(read) for read in reads],
    )  # fmt: skip


def written_before(at: datetime, moments: Mapping[int, datetime]) -> int | None:
    """Give the newest of some commits that is not later than `at`; None: there is none."""
    known = [(moment, commit) for commit, moment in moments.items() if moment <= at]
    return max(known)[1] if known else None
