"""Staleness: partitions whose inputs or code changed since a run computed them, and missing ones.

Everything is derived from what runs recorded: the publications say which run made a partition, its
plan says which rows of which snapshots it read. Only metadata of the inputs is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple

from lakehouse_backfill.core.evidence.inputs.changes import CauseKind, ChangedInput, InputReader
from lakehouse_backfill.core.evidence.inputs.rows import (
    RowSpans,
    doubtful_labels,
    labels_with_rows,
)
from lakehouse_backfill.core.evidence.lineage import PartitionOrigins
from lakehouse_backfill.core.planning.inputs.completeness import (
    incomplete_partitions,
    named_instants,
)
from lakehouse_backfill.core.planning.inputs.read_windows import window_to_read
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.planning.target.row_changes import is_partial_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, NotFound, Unsupported

StateOfPartition = Literal[
    "complete", "missing", "stale", "failed", "in progress", "waiting for approval", "unknown"
]
S = RunState
_STATE_OF_RUN: dict[RunState, StateOfPartition] = {
    S.PLANNED: "waiting for approval",
    S.VALIDATED: "waiting for approval",
    S.FAILED: "failed",
    S.HALTED: "failed",
    S.REJECTED: "failed",
    S.PUBLISH_HALTED: "failed",
}


def state_of_open_run(state: RunState) -> StateOfPartition:
    """Return the state of the partitions that an open run has."""
    return _STATE_OF_RUN.get(state, "in progress")


class _OpenRun(NamedTuple):
    run: RunStatus
    plan: Plan

    @property
    def state(self) -> StateOfPartition:
        return state_of_open_run(self.run.state)


#: A file's transforms: version by name.
CodeVersions = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True)
class StaleCause:
    """Why a partition is not complete: what happened to which input, as a sentence in `text`."""

    kind: CauseKind
    text: str
    input: str | None = None


@dataclass(frozen=True)
class PartitionStatus:
    """The state of one partition; `run_id` is the open run on it, else the one that made it.

    `remarks` are sentences about the open run: that it does not end what is to repair.
    """

    partition: str
    state: StateOfPartition
    causes: tuple[StaleCause, ...] = ()
    run_id: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProductStatus:
    """The states of a product's partitions in order.

    `repair_of` is the plan whose run manifest repairs them; None where there is none. `code` is the
    version of its transform by now. `is_judged`: False where an error, told by a note, ended it.
    """

    product: str
    partitions: tuple[PartitionStatus, ...]
    notes: tuple[str, ...] = ()
    repair_of: Plan | None = None
    code: str = ""
    is_judged: bool = True

    @property
    def to_repair(self) -> tuple[PartitionStatus, ...]:
        """The partitions that are stale or missing, and that no run has that may still mend it."""
        return tuple(one for one in self.partitions if one.state in ("stale", "missing"))


def is_older_code(made: Plan, current: Plan, version: str) -> bool:
    """Return whether a partition was made by other code than `current`'s at `version` by now."""
    old, new = made.resolved.manifest.transform, current.resolved.manifest.transform
    return old.name != new.name or _version_order(old.version) < _version_order(version)


def _version_order(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def find_stale(context: Context, contract: Contract, versions: CodeVersions) -> ProductStatus:
    """Return the state of each partition of a product; nothing is changed.

    `versions` gives the transforms that a file of the project declares by now. Raises Tampered.
    """
    return _Finder(context, contract, versions).status()


def find_stale_products(
    context: Context,
    products: Iterable[str],
    load: Callable[[str], Contract],
    versions: CodeVersions,
) -> Iterator[ProductStatus]:
    """Yield the status of each product; what is wrong with one is its note.

    `load` gives the contract of a product. Raises EnvironmentDown.
    """
    names = tuple(products)
    with context.progress.within("stale", len(names), "products"):
        for product in names:
            try:
                yield find_stale(context, load(product), versions)
            except EnvironmentDown:
                raise
            except BackfillError as error:
                yield ProductStatus(product, (), (f"not judged: {error.problem}",), is_judged=False)
            context.progress.advance()


@dataclass
class _Finder:
    """Looks at one product; what was read of an input is kept for its other runs."""

    context: Context
    contract: Contract
    versions: CodeVersions

    def __post_init__(self) -> None:
        self.inputs = InputReader(self.context)
        self.origins = PartitionOrigins(self.context, self.contract.product)

    def status(self) -> ProductStatus:
        """Judge each partition that a run made, that holds rows, or that should."""
        made_by, current = self.origins.made_by, self.origins.newest_plan()
        if current is None:
            return self._without_history()
        open_runs = self._open_runs()
        outdated = self._outdated(open_runs)
        by, code = current.resolved.scope.field.whole, self._current_version(current)
        causes = self._causes(current, code)
        live = self._live_labels(by)
        gone = self._gone(by, frozenset(made_by) - live)
        hidden = self._hidden(by, frozenset(made_by))
        missing = self._missing(current, frozenset(made_by) | live)
        judged = [
            _with_open_run(
                _judge(
                    label,
                    made_by.get(label, ()),
                    causes.get(label, ()),
                    is_missing=label in missing,
                    gone=gone.get(label, ""),
                    hidden=hidden.get(label, ""),
                ),
                open_runs.get(label),
                outdated.get(label, ()),
            )
            for label in sorted({*made_by, *live, *missing, *open_runs}, key=_order(by))
        ]
        repair_of = None if is_partial_plan(current) or self._is_dropped() else current
        found = ProductStatus(self.contract.product, tuple(judged), (), repair_of, code)
        if found.to_repair and is_partial_plan(current):
            self.inputs.add_note(_no_draft(current))
        return replace(found, notes=tuple(self.inputs.notes))

    def _without_history(self) -> ProductStatus:
        """Return the partitions of open runs, and as unknown those that a rollback left."""
        open_runs = self._open_runs()
        fields = [row.scope.field.whole for row in self.origins.history if row.scope]
        live = self._live_labels(fields[0]) if fields else frozenset[str]()
        found = tuple(
            _with_open_run(_judge(label, (), (), is_missing=False), open_runs.get(label), ())
            if label in live
            else PartitionStatus(label, open_runs[label].state, run_id=open_runs[label].run.run_id)
            for label in sorted({*open_runs, *live})
        )
        what = "readers see rows of no run" if fields else "no run of it is published"
        note = f"{what}: what its rows were computed from is not recorded"
        return ProductStatus(self.contract.product, found, (note,))

    def _current_version(self, current: Plan) -> str:
        """Return the version that the transform's file declares; of the newest run if it cannot."""
        transform = current.resolved.manifest.transform
        return self.versions(transform.file).get(transform.name, transform.version)

    def _open_runs(self) -> dict[str, _OpenRun]:
        """Return, for each partition of an open run, the newest such run.

        One that is never published, such as a dry run, repairs nothing, so it is none.
        """
        found: dict[str, _OpenRun] = {}
        for run in self.context.runs.list(open_only=True):
            if run.product != self.contract.product:
                continue
            try:
                plan = self.origins.plan(run.run_id)
            except NotFound:
                continue
            if publish_modes.is_never_published(plan):
                continue
            for label in plan.resolved.scope.partitions:
                found.setdefault(label, _OpenRun(run, plan))
        return found

    def _outdated(self, open_runs: Mapping[str, _OpenRun]) -> dict[str, tuple[str, ...]]:
        """Say, by partition, what changed of the inputs since the open run on it was planned."""
        by_run: dict[str, list[str]] = defaultdict(list)
        for label, one in open_runs.items():
            if one.state != "failed":
                by_run[one.run.run_id].append(label)
        found: dict[str, list[str]] = defaultdict(list)
        for run, labels in by_run.items():
            plan = self.origins.plan(run)
            for pin in plan.resolved.sources:
                for label, causes in self._input_causes(plan, pin, labels):
                    found[label] += [
                        f"run {run} reads inputs of before: {cause.text}" for cause in causes
                    ]
        return {label: tuple(texts) for label, texts in found.items()}

    def _causes(self, current: Plan, version: str) -> dict[str, tuple[StaleCause, ...]]:
        """Return, by partition, what changed since the runs that made it read their inputs."""
        by_run: dict[str, list[str]] = defaultdict(list)
        for label in self.origins.made_by:
            for plan in self.origins.computing_plans(label):
                by_run[plan.run_id].append(label)
        found: dict[str, list[StaleCause]] = defaultdict(list)
        for run, labels in by_run.items():
            plan = self.origins.plan(run)
            if is_older_code(plan, current, version):
                made, name = plan.resolved.manifest.transform, current.resolved.manifest.transform
                text = f"made by {made.name} {made.version}, by now it is {name.name} {version}"
                for label in labels:
                    found[label].append(StaleCause("newer code", text))
            for pin in plan.resolved.sources:
                for label, causes in self._input_causes(plan, pin, labels):
                    found[label] += causes
        return {label: tuple(dict.fromkeys(causes)) for label, causes in found.items()}

    def _input_causes(
        self, plan: Plan, pin: SourcePin, labels: list[str]
    ) -> Iterator[tuple[str, list[StaleCause]]]:
        changes = self.inputs.changes_since_pin(plan, pin)
        if not changes:
            return
        spans = RowSpans((change.span, change) for change in changes)
        for label in labels:
            if pin.range is None:
                touching = list(changes)
            else:
                scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
                first, stop = window_to_read(pin, scope)
                first = states.first_that_counts(pin, plan.resolved, first)
                touching = list(spans.within((first, stop)))
            yield label, _summed_up(pin.name, touching)

    def _live_labels(self, by: ScopeField) -> frozenset[str]:
        """Return the partitions of the product that hold rows, or may, for its readers."""
        return labels_with_rows(self._read_by_readers(by))

    def _read_by_readers(self, by: ScopeField) -> list[LiveFile]:
        """Return the files of what the product's readers get."""
        table, contract = self.contract.table, self.contract
        info = self.context.tables.describe(table)
        snapshot_id = info.snapshot_id if info else None
        if contract.publication == "pinned":
            accepted = self.context.versions.pointer(contract.product).accepted
            if accepted is not None:
                table, snapshot_id = accepted.table, accepted.snapshot_id
        elif info is None:
            return []
        return self.inputs.live_files(table, snapshot_id, by)

    def _is_dropped(self) -> bool:
        return self.context.tables.describe(self.contract.table) is None

    def _gone(self, by: ScopeField, empty: frozenset[str]) -> dict[str, str]:
        """Say why partitions that runs made, and that hold no rows, are not what the runs wrote.

        One that had no rows when its run was published, or whose snapshot has expired, is left out.
        """
        if empty and self._is_dropped():
            text = f"its table {self.contract.table} does not exist any more"
            self.inputs.add_note(f"{text}: make it again before a run can fill it")
            return dict.fromkeys(empty, text)
        found: dict[str, str] = {}
        for made, then in self._as_published(by, empty):
            found |= dict.fromkeys(made & labels_with_rows(then), "its rows were deleted since")
        return found

    def _hidden(self, by: ScopeField, made: frozenset[str]) -> dict[str, str]:
        """Say of which partitions delete files that came since may hide all rows of the runs."""
        found: dict[str, str] = {}
        some = made & doubtful_labels(self._read_by_readers(by)) if made else made
        for labels, then in self._as_published(by, some):
            text = "delete files that came since may hide all of its rows: metadata does not tell"
            found |= dict.fromkeys(labels - doubtful_labels(then), text)
        return found

    def _as_published(
        self, by: ScopeField, some: frozenset[str]
    ) -> Iterator[tuple[frozenset[str], list[LiveFile]]]:
        """Yield some partitions by the run that made them, with the files that it published."""
        for row in self.origins.history:
            made = frozenset(x for x in some if self.origins.made_by[x][-1] == row.run_id)
            if row.action == "publish" and made:
                with suppress(NotFound, Unsupported):
                    yield made, self.inputs.live_files(row.table, row.snapshot_id, by)

    def _missing(self, current: Plan, known: frozenset[str]) -> frozenset[str]:
        """Return the partitions that the newest run's inputs have rows for, and nothing else has.

        Those before the product's first partition do not count, nor do those that are not over.
        """
        by = current.resolved.scope.field.whole
        surely, possibly = set[str](), dict[str, dict[str, None]]()
        for pin in current.resolved.sources:
            found = self.inputs.expected_partitions(pin, by)
            surely |= found.surely
            for label in found.possibly:
                possibly.setdefault(label, {})[pin.name] = None
            if pin.range is not None and found.unknown:
                self.inputs.add_note(
                    f"whether partitions are missing is not known of {pin.table} by "
                    f"{pin.range.column}: {found.unknown}"
                )
        order, named = _order(by), named_instants(self.context, current.resolved.sources)
        first = min(known - {partitions.NULL_LABEL}, key=order, default="")
        missing = [
            label
            for label in sorted({*surely, *possibly} - known, key=order)
            if order(label) > order(first) and self._is_over(current, label, named)
        ]
        unsure = tuple(label for label in missing if label not in surely)
        if unsure:
            names = ", ".join(dict.fromkeys(x for label in unsure for x in possibly[label]))
            self.inputs.add_note(
                f"may be missing: {partitions.describe_labels(unsure)}; metadata does not tell "
                f"whether {names} has rows of these: its files span several partitions, or delete "
                "files may hide all of the rows"
            )
        return frozenset(missing) & surely

    def _is_over(self, plan: Plan, label: str, named: Mapping[str, datetime]) -> bool:
        """Return whether all input of a partition is there, as `plan` judges it."""
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        manifest, pins = plan.resolved.manifest, plan.resolved.sources
        now = self.context.clock.now()
        return not incomplete_partitions(manifest, scope, pins, now, named)


def _summed_up(name: str, changes: list[ChangedInput]) -> list[StaleCause]:
    """Return one cause for each kind: in which partitions of the input, by which commits."""
    by_kind: dict[CauseKind, list[ChangedInput]] = defaultdict(list)
    for change in changes:
        by_kind[change.kind].append(change)
    found = []
    for kind, some in by_kind.items():
        labels = tuple(dict.fromkeys(change.label for change in some if change.label))
        where = f" in {partitions.describe_labels(labels)}" if labels else ""
        commits = list(dict.fromkeys(change.text for change in some))
        more = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
        what = f"{name}{where}" if kind == "unknown" else f"{kind} of {name}{where}"
        found.append(StaleCause(kind, f"{what}: {commits[-1]}{more}", name))
    return found


def _no_draft(plan: Plan) -> str:
    """Say why no run manifest can be drafted from that of a run."""
    target = plan.resolved.manifest.target
    mode = "by a row predicate" if target.row_predicate else f"with mode {target.publish_mode}"
    part = f"columns {', '.join(target.columns)}" if target.columns else f"some rows, {mode}"
    return (
        f"--draft writes nothing: run {plan.run_id} changed only {part}, and no run "
        "that readers see made whole partitions; write the run manifest by hand"
    )


def _order(by: ScopeField) -> Callable[[str], tuple[int, int, str]]:
    order: Callable[[str], tuple[int, int, str]] = partitions.label_sort_key(by)
    return order


def _judge(
    label: str,
    made_by: tuple[str, ...],
    causes: tuple[StaleCause, ...],
    *,
    is_missing: bool,
    gone: str = "",
    hidden: str = "",
) -> PartitionStatus:
    """Return the state of a partition by the runs that made it; open runs are not looked at."""
    if is_missing:
        text = "its inputs have rows, and no run made it"
        return PartitionStatus(label, "missing", (StaleCause("missing", text),))
    if gone:
        return PartitionStatus(label, "missing", (StaleCause("missing", gone),), made_by[-1])
    if not made_by:
        text = "no run made it: what it was computed from is not recorded"
        return PartitionStatus(label, "unknown", (StaleCause("unknown", text),))
    if hidden:
        causes = (*causes, StaleCause("unknown", hidden))
    state: StateOfPartition = "stale" if causes else "complete"
    if causes and all(cause.kind == "unknown" for cause in causes):
        state = "unknown"
    return PartitionStatus(label, state, causes, made_by[-1])


def _with_open_run(
    judged: PartitionStatus, open_run: _OpenRun | None, remarks: tuple[str, ...]
) -> PartitionStatus:
    """Return the state by the open run on the partition, if there is one; causes stay.

    One that failed repairs nothing, so what is stale or missing stays so.
    """
    if open_run is None:
        return judged
    run, state = open_run.run, open_run.state
    if state == "failed" and judged.state in ("stale", "missing"):
        state, words = judged.state, run.state.value.replace("_", " ")
        remarks = (f"run {run.run_id} on it is {words}", *remarks)
    return replace(judged, run_id=run.run_id, state=state, remarks=remarks)
