"""The verb: plan, approve, stage, validate, accept, publish, verify and roll back a rehearsal.

Every step is the verb that the real run takes, with the context of the rehearsal's lake, and with
the manifest, code, checks and pinned snapshots of the real run. The real lake is only read. Its
owner's hooks are not called, and messages of its code reach no real receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.verification.verify import verify
from lakehouse_backfill.core.guards.outside.sinks import REACHING, answer_files, effective_policy
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan, register_plan
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication.publish import publish_with_catch_up, run_until_decision
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.contract import Contract, Roles
from lakehouse_backfill.domain.guards.compute import DEFAULT
from lakehouse_backfill.domain.guards.outside import Sink, SinkPolicy
from lakehouse_backfill.domain.guards.safety import Switch
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS, Profile
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import (
    BackfillError,
    ChecksFailed,
    ConfigError,
    Conflict,
    NotAllowed,
    NotFound,
)
from lakehouse_backfill.ports.tables import TableCopies


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in the rehearsal; `why` says what that leaves unproven."""

    what: str
    real: str
    rehearsal: str
    why: str


def require_possible_place(real: Profile, place: Profile, name: str) -> None:
    """Raise unless the profile `name` can hold a rehearsal: of another lake, and not of prod.

    The catalogs need different names: signed statements and marks of commits hold the name, so
    none of a rehearsal's counts for the real table. Raises NotAllowed, ConfigError.
    """
    if place.environment in FOUR_EYES_ENVIRONMENTS:
        raise NotAllowed(
            f"profile {name} is of {place.environment}: a rehearsal publishes, and may not do so "
            "there",
            state="nothing was copied or registered",
            fix=f"name a profile with environment: dev; {_HOW_TO_DECLARE}",
        )
    if real.catalog.get("name") == place.catalog.get("name"):
        raise ConfigError(
            f"the catalog of profile {name} has the name of the real one, "
            f"{real.catalog.get('name')}",
            state="nothing was copied or registered",
            fix=f"name a profile of another lake, whose catalog has another name; "
            f"{_HOW_TO_DECLARE}",
        )


_HOW_TO_DECLARE = "docs/rollout.md has a profile to copy"


def require_publishable(plan: Plan) -> None:
    """Raise ConfigError for a run that is never published: there is nothing to rehearse."""
    if publish_modes.is_never_published(plan):
        raise ConfigError(
            f"{plan.manifest_file} is never published, so no publication can be rehearsed",
            state="nothing was copied or registered",
            fix="give `plan`, `approve` and `run` for it; they change no table",
        )


def rehearsal_manifest(contract: Contract, manifest: RunManifest) -> RunManifest:
    """Return the manifest with no message to a real receiver, and no wait for a publish window.

    It computes in the default pool of the other lake's profile, which may not have the same names.

    Raises ConfigError for a sink that would be reached and has neither sandbox nor answers.
    """
    policies = {sink.name: _harmless(contract, sink, manifest) for sink in contract.sinks}
    safety = manifest.safety.model_copy(
        update={"sinks": {**manifest.safety.sinks, **policies}, "publish_window": None}
    )
    compute = manifest.compute.model_copy(update={"pool": DEFAULT, "scratch": DEFAULT})
    return manifest.model_copy(update={"safety": safety, "compute": compute})


def _harmless(contract: Contract, sink: Sink, manifest: RunManifest) -> SinkPolicy:
    policy = effective_policy(manifest, sink)
    if policy not in REACHING:
        return policy
    if sink.sandbox and sink.sandbox != sink.webhook:
        return "sandbox"
    if sink.answers:
        return "mock"
    raise ConfigError(
        f"the run sends messages to {sink.name} ({policy}), and that sink declares nothing that a "
        "rehearsal could use instead",
        state="nothing was copied or registered",
        fix=f"declare sandbox: or answers: for {sink.name} in catalog/contracts/"
        f"{contract.product}.yaml",
    )


def as_rehearsal(of_hash: str) -> Callable[[ResolvedManifest], ResolvedManifest]:
    """Return what makes a resolved manifest that of a rehearsal of the run with `of_hash`.

    Hooks are left out. One person decides on all: roles and four eyes are left out too.
    """

    def amend(resolved: ResolvedManifest) -> ResolvedManifest:
        without = {"hooks": (), "roles": Roles(), "four_eyes": False}
        contract = resolved.contract.model_copy(update=without)
        return resolved.model_copy(update={"contract": contract, "rehearses": of_hash})

    return amend


def require_same_intent(real: ResolvedManifest, found: ResolvedManifest) -> None:
    """Raise Conflict when partitions, chunks, code or snapshots are not those of the real run."""
    parts = {
        "partitions": (real.scope, found.scope),
        "chunks": (real.chunks, found.chunks),
        "code": (real.code_hash, found.code_hash),
        "the target's snapshot": (real.target.snapshot_id, found.target.snapshot_id),
        **{
            f"snapshot of {pin.name}": (pin.snapshot_id, other.snapshot_id)
            for pin, other in zip(real.sources, found.sources, strict=True)
        },
    }
    wrong = [name for name, (wanted, planned) in parts.items() if wanted != planned]
    if wrong:
        raise Conflict(
            f"the rehearsal would not be of this run: other {', '.join(wrong)}",
            state="no run was registered; the copies in the rehearsal's lake are kept",
            fix="give the same command again; if a live table moved, it is copied again. For a "
            "pinned product that was rehearsed there before, use a new, empty catalog",
        )


def tables_to_copy(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return the tables that the run reads or changes, and that exist, each once."""
    target = (resolved.target.table,) if resolved.target.uuid is not None else ()
    sources = (pin.table for pin in resolved.sources)
    tombstones = (pin.table for pin in resolved.tombstones)
    return tuple(dict.fromkeys((*target, *sources, *tombstones)))


def find_differences(
    real: tuple[Profile, Plan], rehearsed: tuple[Profile, Plan]
) -> tuple[Difference, ...]:
    """Return what the real place has otherwise, from both profiles and both plans."""
    return tuple(_differences(real, rehearsed))


def _differences(
    real: tuple[Profile, Plan], rehearsed: tuple[Profile, Plan]
) -> Iterator[Difference]:
    (profile, plan), (place, other) = real, rehearsed
    contract = plan.resolved.contract
    facts = (
        ("environment", profile.environment, place.environment, "its rules were not applied"),
        ("catalog", _kind(profile), _kind(place), "how that catalog commits was not tried"),
        ("store", _store(profile), _store(place), "access to write there was not tried"),
        ("engine", _engine(profile), _engine(place), "duration and memory may differ"),
        ("write path", plan.way.way if plan.way else "-", other.way.way if other.way else "-",
         "another program commits to the table"),
    )  # fmt: skip
    yield from (Difference(*fact) for fact in facts if fact[1] != fact[2])
    named = [
        f"{role}: {', '.join(people)}"
        for role in ("approve", "accept", "publish", "rollback")
        if (people := contract.holders(role, profile.environment))
    ]
    if named:
        text = "; ".join(named)
        yield Difference("roles", text, "one person", "whether they may decide was not asked")
    if roles.is_four_eyes_required(plan, profile.environment, contract):
        yield Difference("four eyes", "two people", "one person", "the second was not asked")
    if profile.requires_signatures:
        has = "required" if place.requires_signatures else "optional"
        yield Difference("signatures", "required", has, "keys of the real run were not used")
    if contract.hooks:
        text = ", ".join(f"{hook.name} ({hook.on})" for hook in contract.hooks)
        yield Difference("hooks", text, "not called", "what they do, and their failure, is open")
    yield from (*_state_difference(plan, other), *_sink_differences(plan, other))
    if plan.resolved.manifest.safety.publish_window is not None:
        yield Difference("publish window", "declared", "none", "it may be closed then")
    switches: tuple[Switch, ...] = ("publish", "hooks")
    off = [name for name in switches if not profile.is_on(name, plan.product)]
    if off:
        yield Difference("switches", f"off: {', '.join(off)}", "on", "it is refused there now")
    if profile.pilot is not None and plan.product not in profile.pilot:
        yield Difference("pilot list", "without this product", "-", "it is refused there now")
    yield Difference(
        "live writers", "may commit meanwhile", "none", "conflicts with them were not tried"
    )


def _state_difference(plan: Plan, other: Plan) -> Iterator[Difference]:
    starts = [one.resolved.state_start for one in (plan, other)]
    wanted, begun = (start.why if start else "-" for start in starts)
    if wanted != begun:
        yield Difference("state", wanted, begun, "values that a restored state decides may differ")


def _sink_differences(plan: Plan, other: Plan) -> Iterator[Difference]:
    for sink in plan.resolved.contract.sinks:
        wanted, kept = (effective_policy(one.resolved.manifest, sink) for one in (plan, other))
        if wanted != kept:
            yield Difference(f"sink {sink.name}", wanted, kept, "its receiver got no message")


def _kind(profile: Profile) -> str:
    """Return the kind of a catalog; no address, as that may hold a password."""
    kind, uri = profile.catalog.get("type", ""), profile.catalog.get("uri", "")
    scheme = uri.partition("://")[0]
    return " ".join(text for text in (kind, scheme if kind == "sql" else "") if text) or "-"


def _store(profile: Profile) -> str:
    return profile.catalog.get("warehouse", "").partition(":")[0] or "-"


def _engine(profile: Profile) -> str:
    spark = profile.spark
    if "spark.remote" in spark:
        return "Spark Connect"
    return spark.get("spark.master", "local").partition("://")[0]


@dataclass(frozen=True)
class RehearsedStep:
    """A step of the path: whether it held, and what was seen."""

    step: str
    held: bool
    seen: str


@dataclass(frozen=True)
class RehearsalOutcome:
    """A rehearsal: its run, its steps, and how the real place differs."""

    plan: Plan
    real_plan: Plan
    copies: tuple[str, ...]
    steps: tuple[RehearsedStep, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class RehearsalPlace:
    """Where a rehearsal works: the ports of its lake, and what copies real tables into it."""

    context: Context
    copies: TableCopies


#: Those of `_Rehearsal` from `approve` to what is read after the rollback.
_STEPS_SHOWN = 9


@dataclass
class _Rehearsal:
    """A registered rehearsal, and the steps that it has gone."""

    context: Context
    plan: Plan
    by: str
    steps: list[RehearsedStep] = field(default_factory=list)

    def note(self, step: str, seen: str, *, held: bool = True) -> None:
        self.steps.append(RehearsedStep(step, held, seen))
        self.context.progress.advance()

    def decide_and_compute(self) -> None:
        """Approve, stage and validate; raises ChecksFailed when gates are closed."""
        context, run_id = self.context, self.plan.run_id
        reason = f"rehearsal of {self.plan.resolved.rehearses}"
        decisions.approve(context, run_id, self.by, reason)
        self.note("approve", f"bound to {self.plan.manifest_hash[:12]}")
        done = run_until_decision(context, run_id, self.by)
        state = context.runs.status(run_id).state
        if state is not RunState.VALIDATED:
            closed = [gate.question for gate in decisions.failed_gates(context, run_id)]
            raise ChecksFailed(
                f"the rehearsal stops: {run_id} is {state.value}; closed gates: "
                f"{', '.join(closed) or 'none'}",
                state="nothing was published, neither here nor for real",
                fix=f"{command_line('status', run_id)}; correct code or manifest, and give the "
                "same command again",
            )
        chunks = len(self.plan.resolved.chunks)
        self.note("stage", f"{chunks} chunks, {done['rows']} rows in the shadow table")
        checks = done.get("checks") or ()
        passed = sum(check.passed for check in checks)
        self.note("validate", f"{passed} of {len(checks)} checks passed; none that failed blocks")
        decisions.accept(context, run_id, self.by, reason)
        self.note("accept", "bound to the results of the checks")

    def publish(self) -> None:
        """Publish, and look at what readers get then."""
        outcome = publish_with_catch_up(self.context, self.plan.run_id, self.by)
        row, swap = outcome.publication, outcome.swap
        files = f", {swap.files_added} data files in, {swap.files_removed} out" if swap else ""
        self.note("publish", f"version {row.version} of {row.product}{files}")
        found = resolve_accepted(self.context, self.plan.resolved.contract, strict=False)
        self.note(
            "read as a consumer",
            f"{found.table} at snapshot {found.snapshot_id}"
            + (f"; other rows in {', '.join(found.drifted)}" if found.drifted else ""),
            held=not found.drifted,
        )

    def verify(self) -> None:
        """Compare what is stored with what was accepted, by metadata."""
        checks = verify(self.context, self.plan.run_id).checks
        wrong = [check.name for check in checks if check.ok is False]
        compared = [check for check in checks if check.ok is not None]
        seen = f"{len(compared) - len(wrong)} of {len(compared)} comparisons agree"
        if wrong:
            seen += f"; not: {', '.join(wrong)}"
        self.note("verify", seen, held=not wrong)

    def roll_back(self) -> None:
        """Roll back, and compare the files of the scope with those of before."""
        plan, context = self.plan, self.context
        base, scope = plan.resolved.target, plan.resolved.scope
        target = plan_rollback(context, plan.product, None, ())
        reason = f"end of the rehearsal {plan.run_id}"
        done = rollback(context, plan.resolved.contract, target, reason, self.by)
        self.note("rollback", f"to version {done.publication.version} of {plan.product}")
        now = self._now()
        before, after = (
            sorted((one.path, one.rows) for one in context.tables.scoped(*where, scope).files)
            for where in ((base.table, base.snapshot_id), now)
        )
        rows = [sum(count for _, count in files) for files in (before, after)]
        seen = f"the same {len(before)} data files as before, {rows[0]} rows"
        if before != after:
            seen = f"{rows[1]} rows as before, in files that were written again"
        if rows[0] != rows[1]:
            seen = f"{rows[1]} rows, where {rows[0]} were before"
        self.note("read after the rollback", seen, held=rows[0] == rows[1])

    def _now(self) -> tuple[str, int | None]:
        contract = self.plan.resolved.contract
        try:
            found = resolve_accepted(self.context, contract, strict=False)
        except NotFound:
            return contract.table, None
        return found.table, found.snapshot_id


def rehearse(
    real: Context, place: RehearsalPlace, declared: DeclaredRun, by: str
) -> RehearsalOutcome:
    """Go the whole path of a run on copies of its tables, in another lake.

    The copies share the data files of the real tables; what the rehearsal writes lies in its own
    lake. The plan of the real run is made, and not registered. Order: copies; the run registered;
    approved; staged and validated; accepted; published; verified; rolled back. Raises ConfigError
    and Conflict before anything is copied, and what the verbs raise.
    """
    context, copies = place.context, place.copies
    real_plan = make_plan(real, declared, by, None)
    require_publishable(real_plan)
    tables = tables_to_copy(real_plan.resolved)
    copies.require_other_lake(tables)
    heads = {table: copies.real_metadata(table) for table in tables}
    end_earlier(context, real_plan.product, by)
    with context.progress.within("rehearse, copying", len(tables), "tables"):
        for table in tables:
            copies.copy(table)
            context.progress.advance()
    plan = _plan_rehearsal(context, declared, real_plan, by)
    act = _Rehearsal(context, plan, by)
    act.note("plan", f"the partitions, chunks, code and snapshots of the real run ({len(tables)} "
             "tables copied without their data)")  # fmt: skip
    try:
        with context.progress.within("rehearse", _STEPS_SHOWN, "steps"):
            act.decide_and_compute()
            act.publish()
            act.verify()
            act.roll_back()
    except BackfillError as error:
        error.state = f"{error.state}; the real tables were only read".removeprefix("; ")
        raise
    moved = [table for table in tables if copies.real_metadata(table) != heads[table]]
    seen = "their metadata is what it was before the rehearsal"
    if moved:
        seen = f"others committed to {', '.join(moved)} meanwhile; the rehearsal only read them"
    act.note("the real tables", seen)
    differences = find_differences((real.profile, real_plan), (context.profile, plan))
    return RehearsalOutcome(plan, real_plan, tables, tuple(act.steps), differences)


def _plan_rehearsal(context: Context, declared: DeclaredRun, real: Plan, by: str) -> Plan:
    """Plan and register the rehearsal with the versions of reference data of the real plan."""
    manifest = rehearsal_manifest(declared.contract, declared.manifest)
    answers = answer_files(declared.contract, manifest)
    references = {pin.name: pin for pin in real.resolved.sources if pin.role == "reference"}
    asked = replace(
        declared,
        manifest=manifest,
        files={**declared.files, **{file: context.code_hash(file) for file in answers}},
        reference_pins=references,
    )
    plan = make_plan(context, asked, by, None, as_rehearsal(real.manifest_hash))
    require_same_intent(real.resolved, plan.resolved)
    return register_plan(context, plan, by)[0]


def end_earlier(context: Context, product: str, by: str) -> None:
    """End earlier rehearsals of the product, which may have been cut off; none stays published.

    Their tables are about to be copied anew. A publication that was begun is finished or undone.
    """
    for status in context.runs.list(open_only=True):
        if status.product != product or not _is_rehearsal(context, status.run_id):
            continue
        if not _can_be_cancelled(context, status.run_id):
            recover(context, status.run_id, by)
        if _can_be_cancelled(context, status.run_id):
            decisions.cancel(context, status.run_id, by, "another rehearsal begins")
    accepted = context.versions.pointer(product).accepted
    if accepted is None or accepted.action != "publish" or not accepted.run_id:
        return
    if _is_rehearsal(context, accepted.run_id):
        contract = context.runs.plan(accepted.run_id).resolved.contract
        back = plan_rollback(context, product, None, ())
        rollback(context, contract, back, "another rehearsal begins", by)


def _is_rehearsal(context: Context, run_id: str) -> bool:
    return bool(context.runs.plan(run_id).resolved.rehearses)


def _can_be_cancelled(context: Context, run_id: str) -> bool:
    return "cancel" in lifecycle.legal_verbs(context.runs.status(run_id).state)
