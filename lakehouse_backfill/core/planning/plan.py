"""Make the plan of a run: resolve what floats, pin it, estimate it, register the run.

`plan --revise` makes a run that takes the place of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakehouse_backfill import errors
from lakehouse_backfill.core.guards.determinism import judge_code
from lakehouse_backfill.core.guards.outside.side_effects import require_no_side_effects
from lakehouse_backfill.core.guards.outside.sinks import require_honourable_sinks
from lakehouse_backfill.core.guards.privacy import masks, rules
from lakehouse_backfill.core.planning import advice, checklist, estimates, job_code, pace
from lakehouse_backfill.core.planning.inputs import pins, reference_versions
from lakehouse_backfill.core.planning.inputs.completeness import (
    check_complete_input,
    completeness_notes,
)
from lakehouse_backfill.core.planning.inputs.read_windows import check_input_ranges
from lakehouse_backfill.core.planning.other_runs import (
    find_conflicting_runs,
    find_repeated_run,
    find_status,
    free_run_id,
    nothing_to_do_warnings,
    require_changed_intent,
    require_revisable,
    supersede_revised_run,
)
from lakehouse_backfill.core.planning.scope import key_chunks, resolve, whole_grain
from lakehouse_backfill.core.planning.target import (
    catch_up,
    column_scope,
    isolation,
    publish_modes,
    row_changes,
    schema_changes,
    states,
    write_path,
)
from lakehouse_backfill.core.runs import lifecycle, roles, signers
from lakehouse_backfill.core.runs import notes as run_notes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import corrections, steps
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import PIN_DAYS, Contract
from lakehouse_backfill.domain.guards.privacy import InputPrivacy
from lakehouse_backfill.domain.labels.values import fits
from lakehouse_backfill.domain.manifest import RunManifest, require_supported, unplannable
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import (
    Plan,
    PreviousCodePin,
    ResolvedManifest,
    SourcePin,
    TargetPin,
)
from lakehouse_backfill.domain.run import LINEAGE_NAMES, RunState, RunStatus
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.tables.files import ScopedFiles, SpecPartitions
from lakehouse_backfill.domain.tables.schema_change import schema_change_notes
from lakehouse_backfill.domain.tables.table import TableInfo, TableRef


def resolve_lineage_columns(contract: Contract, target: TableInfo | None) -> Contract:
    """Return the contract with `lineage_columns` decided: on for a table that the run creates.

    In one that exists they are on when it has all of them. Raises ConfigError when the contract
    wants them and the table lacks some: staging could not write them.
    """
    missing = [name for name in LINEAGE_NAMES if target and target.column(name) is None]
    if contract.lineage_columns and missing:
        raise errors.ConfigError(
            f"the contract of {contract.product} asks for lineage columns, but {contract.table} "
            f"has no {', '.join(missing)}",
            fix="add the columns to the table, or write lineage_columns: false in "
            f"catalog/contracts/{contract.product}.yaml",
        )
    if contract.lineage_columns is not None:
        return contract
    return contract.model_copy(update={"lineage_columns": not missing})


def read_scope_files(context: Context, resolved: ResolvedManifest) -> ScopedFiles:
    """Read the target's files of the scope, once for all that a plan says of them.

    Raises Unsupported when a file also holds rows beside the scope, or of two chunks: a part of a
    file cannot be replaced.
    """
    target = resolved.target
    if target.snapshot_id is None:
        return ScopedFiles()
    size = row_changes.chunk_size_field(resolved.manifest)
    found = context.tables.scoped(target.table, target.snapshot_id, resolved.scope)
    spanning = [(place, frozenset(labels)) for place in found.places for labels in place.spans]
    for place, spanned in spanning:
        shares = (spanned.intersection(chunk.partitions) for chunk in resolved.chunks)
        if any(share and share != spanned for share in shares):
            raise errors.Unsupported(
                f"{target.table} has files of spec {place.spec_id} ({place.spec}) that hold rows "
                f"of several chunks: {partitions.describe_labels(tuple(sorted(spanned)))}",
                state="nothing was registered",
                fix=f"set {size} so that one chunk holds them all (at least {len(spanned)}), or "
                "rewrite the files: CALL system.rewrite_data_files",
                field=size,
            )
    return found


def _partition_spec_notes(found: tuple[SpecPartitions, ...]) -> tuple[str, ...]:
    """Describe what is replaced where more than one spec holds files of the scope."""
    if len(found) < 2:
        return ()
    texts = [f"{len(each.partitions)} of spec {each.spec_id} ({each.spec})" for each in found]
    return (f"files of several partition specs are replaced: {', '.join(texts)}",)


@dataclass(frozen=True)
class DeclaredRun:
    """What the files of a project say about one run."""

    manifest: RunManifest
    contract: Contract
    manifest_file: str
    code_hash: str
    git_commit: str | None
    lock_hash: str | None
    files: dict[str, str] = field(default_factory=dict)
    previous_code: PreviousCodePin | None = None
    #: The contracts of the project that the inputs' tables have, by table.
    input_contracts: Mapping[str, Contract] = field(default_factory=dict)
    #: For a revision: what was approved of its inputs' privacy, by name, instead of contracts.
    input_privacy: Mapping[str, InputPrivacy | None] | None = None
    #: For a revision: the versions of reference data that were approved, by name.
    reference_pins: Mapping[str, SourcePin] = field(default_factory=dict)


def make_plan(
    context: Context,
    declared: DeclaredRun,
    by: str,
    revise: str | None,
    amend: Callable[[ResolvedManifest], ResolvedManifest] | None = None,
) -> Plan:
    """Work out the plan without changing anything; `amend` has the last word on what is resolved.

    Raises ConfigError, NotFound, IllegalMove (the run to revise), Unsupported, LimitExceeded.
    """
    manifest = declared.manifest
    require_supported(manifest)
    publish_modes.check_publish_mode(manifest, declared.contract)
    catch_up.require_catch_up_possible(manifest)
    publish_modes.require_no_edge_check(manifest)
    require_revisable(context, manifest.product, revise)
    job_code.require_committed(declared.git_commit, context.profile.environment)
    base = _base(context, declared.contract)
    scope = resolve.resolve_scope(_scope_field(context, declared, base), manifest.target.partitions)
    column_scope.require_one_kind_of_scope(context, manifest.product, scope.field)
    scope = write_path.fit_to_target(manifest, declared.contract, base, scope)
    schema_changes.require_possible_schema_change(manifest, declared.contract, base)
    target = _target_pin(declared.contract, base)
    chunks, bounds = _cut_chunks(context, declared, base, scope)
    sources, notes = _resolve_inputs(context, declared, target, scope, chunks)
    sink, partitions = corrections.check_corrections(context, manifest, declared.contract)
    notes += steps.check_progressive(manifest, declared.contract, scope) + sink + bounds
    resolved = ResolvedManifest(
        manifest=manifest,
        contract=resolve_lineage_columns(declared.contract, base),
        scope=scope,
        chunks=chunks,
        sources=sources,
        target=target,
        code_hash=declared.code_hash,
        git_commit=declared.git_commit,
        lock_hash=declared.lock_hash,
        config_hash=digest(manifest.transform.config),
        files=declared.files,
        environment=context.profile.environment,
        tombstones=pins.resolve_tombstones(context, declared.contract),
        previous_code=declared.previous_code,
        mask_key=masks.pin_mask_key(declared.contract, context.secrets),
        topic_partitions=partitions,
    )
    resolved = states.with_start(context, amend(resolved) if amend else resolved)
    job_code.require_code_of_version(context, resolved)
    notes += job_code.check_previous_code(resolved) + _target_notes(context, resolved, base)
    return _complete_plan(context, resolved, declared, by, revise, notes)


def _cut_chunks(
    context: Context, declared: DeclaredRun, base: TableInfo | None, scope: Scope
) -> tuple[tuple[partitions.Chunk, ...], tuple[str, ...]]:
    """Return the chunks: of partitions, or of a whole table by its key; notes on their bounds."""
    manifest, contract = declared.manifest, declared.contract
    limit = row_changes.chunk_partition_limit(manifest, contract, scope)
    by_key, notes = key_chunks.plan_key_chunks(context.tables, manifest, contract, base)
    return by_key or resolve.cut_chunks(scope, limit), notes


def _resolve_inputs(
    context: Context,
    declared: DeclaredRun,
    target: TargetPin,
    scope: Scope,
    chunks: tuple[partitions.Chunk, ...],
) -> tuple[tuple[SourcePin, ...], tuple[str, ...]]:
    """Return the pinned inputs; notes on grains, and on their versions, ranges, completeness."""
    manifest, contracts = declared.manifest, declared.input_contracts
    states.check_declaration(manifest, scope)
    grains = whole_grain.require_whole_grains(declared.contract, scope)
    old = reference_versions.OldRows(manifest.product, target.table, target.snapshot_id, scope)
    versions = reference_versions.resolve_references(
        context, manifest.reference_data, contracts, old, declared.reference_pins
    )
    found = pins.resolve_sources(context, manifest, contracts, declared.input_privacy, versions)
    notes = grains + reference_versions.semantics_notes(manifest.reference_data, versions)
    keys = chunks[0].keys
    own = pins.own_rows_notes(scope, found, keys.field if keys else None)
    notes += check_input_ranges(manifest, scope, found) + own
    notes += tuple(f"business rule: {rule}" for rule in declared.contract.business_rules)
    return found, notes + completeness_notes(manifest, declared.contract, found)


def _privacy_notes(
    context: Context, resolved: ResolvedManifest, base: TableInfo | None
) -> tuple[str, ...]:
    """Check the rules of privacy, and the secret of the masks against the accepted version's."""
    notes = rules.check_privacy(resolved, context.clock.now())
    notes += masks.metrics_notes(resolved.contract, base)
    if resolved.mask_key is None:
        return notes
    accepted = context.versions.pointer(resolved.contract.product).accepted
    if accepted is None or accepted.run_id is None:
        return notes
    before = context.runs.plan(accepted.run_id).resolved.mask_key
    return notes + masks.changed_key_notes(resolved.mask_key, before)


def register_plan(context: Context, plan: Plan, by: str) -> tuple[Plan, RunStatus]:
    """Pin the snapshots and register the run; the same open plan again changes nothing.

    Order: pins, code, run, then the run that this one revises is superseded. Raises ApprovalMissing
    and NotAllowed where plans are signed, and `by` cannot sign this one.
    """
    known = find_status(context, plan.run_id)
    if known is not None and known.state in lifecycle.OPEN_STATES:
        return context.runs.plan(plan.run_id), known
    roles.require_plan_environment(plan, context.profile.environment)
    signers.require_planner(context.identity, context.profile, plan, by)
    pins.pin_snapshots(context, plan)
    job_code.archive_code(context, plan)
    now = context.clock.now()
    draft = RunStatus(run_id=plan.run_id, product=plan.product, state=RunState.DRAFT, seq=0, at=now)
    detail = {
        "manifest_hash": plan.manifest_hash,
        "revises": plan.revises,
        signers.REGISTERED: plan.registered_digest,
    }
    mode = plan.resolved.manifest.run.mode
    event = lifecycle.next_event(draft, "plan", actor=by, mode=mode, at=now, detail=detail)
    named = event.model_copy(update={"product": plan.product})
    signed = signers.sign_event(context.identity, context.profile, plan, named)
    status = context.runs.register(plan, signed)
    labels = plan.resolved.scope.partitions
    context.journal.bind(**plan.labels).log("run planned", partitions=len(labels))
    supersede_revised_run(context, plan, by)
    return plan, status


def _complete_plan(
    context: Context,
    resolved: ResolvedManifest,
    declared: DeclaredRun,
    by: str,
    revise: str | None,
    notes: tuple[str, ...],
) -> Plan:
    rules.require_permitted_person(resolved, by)
    warnings = _intent_warnings(context, resolved, revise)
    warnings += pins.unaccepted_input_warnings(context, resolved, declared.input_contracts)
    texts = job_code.code_texts(context, resolved)
    _require_known_columns(texts, resolved)
    require_honourable_sinks(resolved.contract, resolved.manifest)
    require_no_side_effects(texts, resolved.manifest)
    findings = judge_code(texts, resolved.manifest)
    scoped = read_scope_files(context, resolved)
    places, found = scoped.places, estimates.estimate_run(context, resolved, scoped.files)
    estimate, table = found.estimate, resolved.target.table
    warnings = estimates.estimate_warnings(context, resolved, found) + warnings
    notes = _advice(context, resolved, found.rows_there) + notes
    estimates.check_limits(resolved.manifest, estimate, context.clock.now(), context.profile.prices)
    chosen = context.choose_write_path(table, resolved.scope)
    write_path.require_fitting_write_path(resolved.manifest, table, chosen)
    run_id = free_run_id(context, f"bf-{resolved.manifest_hash[:10]}")
    require_changed_intent(context, run_id, revise, declared.manifest_file)
    repeated = find_repeated_run(context, resolved)
    shadow = isolation.shadow_name(context, resolved, run_id)
    warnings += write_path.carry_warnings(resolved, chosen, shadow)
    return Plan(
        run_id=run_id,
        repeats=repeated,
        revises=revise,
        created_at=context.clock.now(),
        created_by=by,
        resolved=resolved,
        manifest_hash=resolved.manifest_hash,
        estimate=estimate,
        places=places,
        way=write_path.way_to_shadow(chosen, shadow),
        conflicts=find_conflicting_runs(context, resolved, {run_id, revise}),
        checklist=checklist.answer_checklist(
            resolved, estimate, findings, shadow, are_signed=context.profile.requires_signatures
        ),
        notes=notes + _partition_spec_notes(places) + pins.expiry_notes(context, resolved.sources),
        warnings=nothing_to_do_warnings(repeated, findings) + warnings,
        manifest_file=declared.manifest_file,
        findings=findings,
        shadow_table=shadow,
    )


def _advice(context: Context, resolved: ResolvedManifest, rows_there: int) -> tuple[str, ...]:
    """Return what the kind of the run means, and cases that speak against a backfill."""
    kind = publish_modes.check_run_kind(resolved.manifest, resolved.target.table, rows_there)
    kind += isolation.isolation_notes(context, resolved)
    return kind + advice.advise_on_run(context, resolved, rows_there)


def _intent_warnings(
    context: Context, resolved: ResolvedManifest, revise: str | None
) -> tuple[str, ...]:
    """Return what speaks against the run; raise Unsupported for a forbidden transform version."""
    manifest, contract = resolved.manifest, resolved.contract
    deprecated = job_code.require_allowed_version(manifest, contract, context.clock.now())
    noted = run_notes.notes_for_next_plan(context, contract.product)
    noted += isolation.catalog_warnings(context, contract)
    noted += states.start_warnings(resolved)
    noted += column_scope.earlier_part_warnings(context, resolved)
    return deprecated + noted + catch_up.revision_warnings(context, resolved, revise)


def _require_known_columns(texts: Mapping[str, str], resolved: ResolvedManifest) -> None:
    """Raise ConfigError, by file and line, for a SQL file that the pinned inputs do not fit."""
    transform = resolved.manifest.transform
    if not transform.file.endswith(".sql"):
        return
    # sqlglot is loaded only when there is a query.
    from lakehouse_backfill.core.guards.sql_columns import require_resolved_columns

    require_resolved_columns(texts, transform, resolved.sources)


def target_of(context: Context, declared: DeclaredRun) -> tuple[ScopeField, TableInfo | None]:
    """Return the field that scopes a run of the product, and the table that it starts from."""
    base = _base(context, declared.contract)
    return _scope_field(context, declared, base), base


def _base(context: Context, contract: Contract) -> TableInfo | None:
    """Return the table that a run starts from: of a pinned product, its accepted snapshot."""
    if contract.publication == "pinned":
        accepted = context.versions.pointer(contract.product).accepted
        if accepted is not None:
            info = context.tables.describe(accepted.table)
            return info and info.model_copy(update={"snapshot_id": accepted.snapshot_id})
    info = context.tables.describe(contract.table)
    if info is not None and info.snapshot_id is not None:
        head = context.tables.resolve(TableRef(table=info.table, at=str(info.snapshot_id)))
        pins.require_current_names(info, head, "target")
    return info


def _scope_field(context: Context, declared: DeclaredRun, base: TableInfo | None) -> ScopeField:
    column = declared.manifest.target.partitions.scoped_by
    if column == partitions.ANY_COLUMN:
        return partitions.WHOLE_TABLE_FIELD
    if base is not None:
        with errors.attach_error_field("target.partitions.column"):
            return context.tables.scope_field(base, column)
    wanted = next((item for item in declared.contract.partitioning if item.column == column), None)
    kind = declared.contract.partition_type(wanted) if wanted else ""
    if wanted is None or not kind:
        raise errors.ConfigError(
            f"{declared.contract.product} is not partitioned by {column}",
            fix="name a column of the contract's partitioning: "
            + (", ".join(item.column for item in declared.contract.partitioning) or "it has none")
            + "; or write target.partitions.whole_table: true",
            field="target.partitions.column",
        )
    if not fits(wanted.transform, kind):
        raise unplannable(
            f"{declared.contract.product} cannot be restated by {wanted.transform}({column}) of "
            f"type {kind}",
            fix="use another column, or write target.partitions.whole_table: true",
            field="target.partitions.column",
        )
    return ScopeField(column=column, transform=wanted.transform, type=kind, path=wanted.path)


def _target_pin(contract: Contract, base: TableInfo | None) -> TargetPin:
    """Pin the state of the target; of a table that does not exist nothing but the name is known."""
    names = ("uuid", "snapshot_id", "schema_id", "spec_id", "format_version")
    facts = {name: getattr(base, name, None) for name in names}
    return TargetPin(table=base.table if base else contract.table, **facts)


def _target_notes(
    context: Context, resolved: ResolvedManifest, base: TableInfo | None
) -> tuple[str, ...]:
    change = resolved.manifest.target.schema_change
    notes = [
        write_path.describe_scope(context, resolved),
        key_chunks.chunks_note(resolved),
        f"pinned snapshots are kept until {PIN_DAYS} days after acceptance",
    ]
    notes += [
        f"source {pin.name} is the target itself at snapshot {pin.snapshot_id}: the result depends "
        "on the rows that it replaces, so a later run on its result may come out differently"
        for pin in resolved.sources
        if pin.table == resolved.target.table
    ]
    if resolved.target.uuid is None:
        notes.append(f"{resolved.target.table} does not exist: it is created empty when staged")
    notes += write_path.publish_mode_notes(context, resolved)
    notes += check_complete_input(context, resolved)
    notes += _privacy_notes(context, resolved, base)
    waivers = resolved.manifest.safety.waivers
    notes += roles.check_plan(context.profile, resolved.manifest.product, waivers)
    notes += pace.place_notes(context, resolved.manifest) + states.start_notes(resolved)
    return (*notes, *schema_change_notes(change, resolved.contract))
