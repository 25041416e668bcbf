"""The 16 questions of the design checklist, answered from a resolved manifest."""

from __future__ import annotations

from lakehouse_backfill.core.guards.determinism import describe_findings
from lakehouse_backfill.core.guards.outside.sinks import describe_sinks
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.scope.resolve import computed_edges
from lakehouse_backfill.core.planning.target import column_scope, publish_modes, row_changes
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import PIN_DAYS, Contract
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.plan import ChecklistQuestion, Estimate, ResolvedManifest
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow

#: Publish modes that say what they do.
_SELF_EXPLAINING_MODES = ("replace_partitions", "pointer_swap")


def answer_checklist(
    resolved: ResolvedManifest, estimate: Estimate, findings: tuple[Finding, ...],
    shadow_table: str, *, are_signed: bool = False,
) -> tuple[ChecklistQuestion, ...]:  # fmt: skip
    """Answer each question; an answer of None blocks approval, and `how` says who can give it."""
    contract, run = resolved.contract, resolved.manifest.run
    file = f"catalog/contracts/{contract.product}.yaml"
    missing = _missing_privacy_fields(contract)
    #: Question, answer, and the field that would give an answer that is missing.
    items: tuple[tuple[str, str | None, str], ...] = (
        ("Why is history changed?", f"{run.reason} ({run.reason_code})", ""),
        ("What may change?", _scope(resolved), ""),
        ("Which input is read?", _pins(resolved), "sources in the run manifest"),
        (
            "How does the input range differ from the output range?",
            _ranges(resolved),
            "sources.NAME.range in the run manifest",
        ),
        ("Which transform runs?", _transform(resolved, findings), ""),
        ("Which configuration and reference data?", _reference(resolved), ""),
        (
            "Which side effects?",
            _side_effects(resolved),
            "write safety.side_effects: false in the run manifest",
        ),
        ("Where is it staged?", _staging(resolved, shadow_table), ""),
        ("Which gates?", _gates(resolved), ""),
        ("How is it reconciled?", _reconciliation(resolved), ""),
        ("How is it published?", _publication(resolved), ""),
        ("How is it rolled back?", _rollback(resolved), ""),
        (
            "Who relies on it?",
            _consumers(contract),
            f"write consumers in {file}, and whether each tolerates restatement; [] says: nobody",
        ),
        (
            "What about privacy?",
            None if missing else _privacy(resolved),
            f"write {' and '.join(missing)} in {file}",
        ),
        ("What does it cost, how far can it reach?", _cost(resolved, estimate), ""),
        ("What evidence is kept?", f"{_EVIDENCE}; {_SIGNATURES[are_signed]}", ""),
    )
    return tuple(
        ChecklistQuestion(
            number=number, question=question, answer=answer or None, how="" if answer else how
        )
        for number, (question, answer, how) in enumerate(items, start=1)
    )


def unanswered_questions(checklist: tuple[ChecklistQuestion, ...]) -> tuple[str, ...]:
    """Name the questions without an answer, each with how to answer it."""
    return tuple(
        f"{item.number}. {item.question}" + (f" ({item.how})" if item.how else "")
        for item in checklist
        if not item.answer
    )


_EVIDENCE = (
    "this plan, verdict on the input, chunk ledger, checks, diff, decisions and publication, in "
    f"the control tables; the pinned snapshots until {PIN_DAYS} days after acceptance"
)


_SIGNATURES = {
    True: "decisions and publications must be signed",
    False: "decisions need no signature: without one, a name is the login's, or that of --by",
}


def _scope(resolved: ResolvedManifest) -> str:
    labels = partitions.describe_labels(resolved.scope.partitions)
    rows = row_changes.describe_row_predicate(resolved.manifest.target)
    text = f"{resolved.target.table}: {labels} of {resolved.scope.field.column}"
    if resolved.scope.field.is_whole_table:
        text = f"{resolved.target.table}: the whole table"
    return text + column_scope.describe_part(resolved.manifest.target, rows)


def _pins(resolved: ResolvedManifest) -> str:
    found = [
        f"{pin.table}@{pin.snapshot_id}"
        + (f" (schema {pin.schema_id})" if pin.schema_id is not None else "")
        for pin in resolved.sources
        if pin.role == "source"
    ]
    return ", ".join(found)


def _ranges(resolved: ResolvedManifest) -> str:
    exception = resolved.manifest.safety.incomplete_input
    texts = [
        f"{pin.name}: {pin.range.column} from {pin.range.from_} to {pin.range.to}, "
        f"{pin.warm_up_days} days before and {pin.cool_down_days} after each chunk"
        for pin in resolved.sources
        if pin.range is not None
    ]
    if exception is not None:
        texts.append(
            f"input may be incomplete, written in the manifest, in {exception.by}'s name: "
            f"{exception.reason}"
        )
    return "; ".join(texts)


def _transform(resolved: ResolvedManifest, findings: tuple[Finding, ...]) -> str:
    wanted = resolved.manifest.transform
    parts = [
        f"{wanted.name} {wanted.version}, code {resolved.code_hash[:12]}",
        f"git {resolved.git_commit}" if resolved.git_commit else "in no git repository",
        f"{len(resolved.files)} files bound by hash",
    ]
    code_count = len(job_code.code_files(resolved))
    parts.append(describe_findings(findings, resolved.manifest, code_count))
    if wanted.image_digest:
        parts.append(f"image {wanted.image_digest}")
    versions = [f"{name} {version}" for name, version in sorted(wanted.schema_versions.items())]
    if wanted.writer == "external":
        parts.append("another engine runs it, nobody here")
    if resolved.previous_code:
        parts.append(f"old rows by {resolved.previous_code}, on the word of the manifest")
    if versions:
        parts.append(f"schemas {', '.join(versions)}")
    return "; ".join(parts)


def _reference(resolved: ResolvedManifest) -> str:
    pins = {pin.name: f"{pin.table}@{pin.snapshot_id}" for pin in resolved.sources}
    texts = [
        f"{name}: {pins[name]} ({reference.semantics})"
        for name, reference in resolved.manifest.reference_data.items()
    ]
    values = len(resolved.manifest.transform.config)
    config = f"{values} configuration values"
    if values and resolved.config_hash:
        config += f" (hash {resolved.config_hash[:12]})"
    return "; ".join([*(texts or ["no reference data"]), config])


def _side_effects(resolved: ResolvedManifest) -> str | None:
    if resolved.manifest.safety.side_effects:
        return None
    text = (
        f"none declared, none named in {len(job_code.code_files(resolved))} files of code; "
        "writes outside the shadow by the job's Spark session are refused; network, "
        "processes and files outside the scratch folder are stopped where Python reports them, in "
        "the driver and in Spark's Python workers, and known clients at their import; validate "
        "looks for commits of the same application to other tables; native code of other "
        "libraries is not looked at"
    )
    if resolved.manifest.transform.writer == "external":
        text = "those of the engine that writes the shadow: nobody here can refuse them"
    if sinks := describe_sinks(resolved.contract, resolved.manifest):
        text = text.replace("none declared", f"declared sinks: {sinks}; else none", 1)
    hooks = [f"{hook.name} ({hook.on})" for hook in resolved.contract.hooks]
    return text + (f"; hooks of the contract: {', '.join(hooks)}" if hooks else "")


def _staging(resolved: ResolvedManifest, shadow_table: str) -> str:
    compute, branch = resolved.manifest.compute, parse_branch_shadow(shadow_table)
    place = {
        "shadow": "in a shadow table of its own",
        "under_target": "in a shadow table whose files lie under the target's prefix",
    }[compute.staging_location]
    if branch:
        place = f"on branches {branch.branch_pattern} of {branch.target}, among its own files"
    if resolved.manifest.transform.writer == "external":
        return f"{place}; another engine writes it, between shadow open and shadow close"
    return f"{place}; computed in pool {compute.pool}, scratch place {compute.scratch}"


def _gates(resolved: ResolvedManifest) -> str:
    manifest, contract = resolved.manifest, resolved.contract
    validation = manifest.validation
    suites = [f"{item.file} on {item.on}" for item in contract.suites + validation.suites]
    limits = [f"{item.measure} within {item.max_change:.0%}" for item in contract.thresholds]
    parts = [
        "technical and schema",
        f"suites: {', '.join(suites) or 'none'}",
        f"thresholds: {', '.join(limits) or 'none'}",
        f"edges: {edges} partitions on each side, "
        f"{validation.edge_tolerance_rows} differing rows allowed"
        if (edges := computed_edges(manifest))
        else "edges: not looked at",
    ]
    after = contract.after_publish
    if after is not None:
        checked = ", ".join(item.file for item in after.suites) or "the rows alone"
        parts.append(f"after publish: {checked}, on failure {after.on_failed}")
    if validation.golden or validation.spot_checks:
        golden = validation.golden or "no golden file"
        parts.append(f"{golden}, {len(validation.spot_checks)} spot checks")
    reported = sorted(name for name, choice in validation.gates.items() if choice == "report")
    if reported:
        parts.append(f"only reported: {', '.join(reported)}")
    return "; ".join(parts)


def _reconciliation(resolved: ResolvedManifest) -> str:
    contract, validation = resolved.contract, resolved.manifest.validation
    totals = [item.name for item in contract.measures]
    sources = [f"{item.measure} of {item.source}" for item in contract.source_totals]
    return (
        f"count and checksum per partition (checksum {validation.checksum}); "
        f"totals: {', '.join(totals) or 'none declared'}; "
        f"equal to the source: {', '.join(sources) or 'none declared'}; "
        f"tolerance {validation.count_tolerance:g}"
    )


def _publication(resolved: ResolvedManifest) -> str:
    mode = resolved.manifest.target.publish_mode
    if mode == "shadow_only" or resolved.manifest.run.mode == "dry_run":
        return "never: the result stays in the shadow table"
    manual = "by hand" if resolved.manifest.safety.manual_publish else "by the run itself"
    what = "" if mode in _SELF_EXPLAINING_MODES else f"; {publish_modes.MODE_MEANINGS[mode]}"
    return f"{mode}, {manual}, after accept; one commit, metadata only{what}"


def _rollback(resolved: ResolvedManifest) -> str:
    if resolved.manifest.target.publish_mode == "shadow_only":
        return "not needed: nothing is published"
    return (
        f"lakehouse-backfill rollback {resolved.manifest.product}: one commit, metadata only, of "
        "just these partitions; tags keep both sides of the publication"
    )


def _consumers(contract: Contract) -> str | None:
    if contract.consumers is None:
        return None
    texts = [
        f"{item.name} ({'tolerates' if item.tolerates_restatement else 'does not tolerate'}"
        " restatement)"
        for item in contract.consumers
    ]
    return "; ".join(texts) or "nobody, says the contract"


def _missing_privacy_fields(contract: Contract) -> list[str]:
    names = ("classification", "retention_days")
    return [name for name in names if getattr(contract, name) is None]


def _privacy(resolved: ResolvedManifest) -> str:
    contract, run = resolved.contract, resolved.manifest.run
    kept = contract.retention_days
    retention = "without limit" if kept == "unlimited" else f"{kept} days"
    parts = [f"classification {contract.classification}; kept {retention}; owner {contract.owner}"]
    if run.purpose is not None:
        parts.append(f"for {run.purpose}, requested by {run.requested_by}")
    masked = [f"{name} by {each.mask}" for name, each in contract.masked_columns.items()]
    if masked:
        parts.append(f"masked: {', '.join(masked)}")
    if contract.restricted_columns:
        parts.append(f"in no report: values of {', '.join(contract.restricted_columns)}")
    exception = resolved.manifest.safety.retention_exception
    if exception is not None:
        parts.append(
            f"retention waived in the manifest, in {exception.by}'s name: {exception.reason}"
        )
    parts += [
        f"{one.column} may be made of restricted columns, waived in the manifest, in "
        f"{one.by}'s name: {one.reason}"
        for one in resolved.manifest.safety.restricted_flows
    ]
    return "; ".join(parts)


def _cost(resolved: ResolvedManifest, estimate: Estimate) -> str:
    safety = resolved.manifest.safety
    limits = [
        f"{name} {limit:,}"
        for name in ("max_rows", "max_bytes", "max_cost_usd")
        if (limit := getattr(safety, name)) is not None
    ]
    cost = "the cost is not known" if estimate.cost_usd is None else f"{estimate.cost_usd} USD"
    if estimate.cost_usd is not None and estimate.not_in_cost:
        cost += f" without {' and '.join(estimate.not_in_cost)}, not known yet"
    return (
        f"reads {estimate.input_rows:,} rows, {estimate.input_bytes:,} bytes in "
        f"{estimate.input_files} files; {cost}; reaches {len(resolved.scope.partitions)} "
        f"partitions and nothing else; limits: {', '.join(limits) or 'none declared under safety'}"
    )
