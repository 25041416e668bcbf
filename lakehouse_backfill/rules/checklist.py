"""The 16 questions of the design checklist, answered from a resolved manifest."""

from __future__ import annotations

from lakehouse_backfill.model.plan import Estimate, Question, Resolved
from lakehouse_backfill.rules import partitions


def answer(resolved: Resolved, estimate: Estimate) -> tuple[Question, ...]:
    """Answer each question; an answer of None blocks approval."""
    manifest, contract = resolved.manifest, resolved.contract
    scope = partitions.describe(resolved.scope.partitions)
    code = f"{manifest.transform.name} {manifest.transform.version}"
    suites = len(contract.suites) + len(manifest.validation.suites)
    pairs = (
        ("Why is history changed?", f"{manifest.run.reason} ({manifest.run.reason_code})"),
        ("What may change?", f"{resolved.target.table}: {scope} of {resolved.scope.field.column}"),
        ("Which input is read?", _pins(resolved, "source")),
        ("How does the input range differ from the output range?", _ranges(resolved)),
        ("Which transform runs?", f"{code}, code {resolved.code_hash[:12]}"),
        ("Which configuration and reference data?", _reference(resolved)),
        ("Which side effects?", _side_effects(resolved)),
        ("Where is it staged?", f"in a shadow table ({manifest.compute.staging_location})"),
        (
            "Which gates?",
            f"technical, schema, {suites} suites, reconciliation, diff, edges "
            f"({manifest.validation.edge_partitions} partitions)",
        ),
        (
            "How is it reconciled?",
            f"count and checksum per partition; {len(contract.measures)} declared totals",
        ),
        ("How is it published?", _publication(resolved)),
        ("How is it rolled back?", f"lakehouse-backfill rollback {manifest.product}"),
        ("Who relies on it?", _consumers(resolved)),
        (
            "What about privacy?",
            f"classification {contract.classification}; owner {contract.owner}",
        ),
        ("What does it cost, how far can it reach?", _cost(resolved, estimate)),
        ("What evidence is kept?", "pins, code hash, chunk ledger, checks, diff, decisions"),
    )
    return tuple(
        Question(number=number, question=question, answer=text)
        for number, (question, text) in enumerate(pairs, start=1)
    )


def unanswered(checklist: tuple[Question, ...]) -> tuple[str, ...]:
    """Name the questions without an answer."""
    return tuple(f"{item.number}. {item.question}" for item in checklist if not item.answer)


def _pins(resolved: Resolved, role: str) -> str | None:
    found = [f"{pin.table}@{pin.snapshot_id}" for pin in resolved.sources if pin.role == role]
    return ", ".join(found) or None


def _ranges(resolved: Resolved) -> str | None:
    texts = [
        f"{pin.name}: {pin.range.column} from {pin.range.from_} to {pin.range.to}, "
        f"{pin.warm_up_days} days before and {pin.cool_down_days} after each chunk"
        for pin in resolved.sources
        if pin.range is not None
    ]
    return "; ".join(texts) or None


def _reference(resolved: Resolved) -> str:
    config = len(resolved.manifest.transform.config)
    texts = [
        f"{name}: {_pin_of(resolved, name)} ({reference.semantics})"
        for name, reference in resolved.manifest.reference_data.items()
    ]
    return "; ".join([*texts, f"{config} configuration values"])


def _pin_of(resolved: Resolved, name: str) -> str:
    return next(f"{pin.table}@{pin.snapshot_id}" for pin in resolved.sources if pin.name == name)


def _side_effects(resolved: Resolved) -> str | None:
    if resolved.manifest.safety.side_effects:
        return None
    return "none: the job's session can write nowhere but its shadow"


def _publication(resolved: Resolved) -> str:
    manual = "by hand" if resolved.manifest.safety.manual_publish else "by the run itself"
    return f"{resolved.manifest.target.publish_mode}, {manual}, after accept"


def _consumers(resolved: Resolved) -> str:
    consumers = resolved.contract.consumers
    if not consumers:
        return "the contract names no consumer"
    return "; ".join(
        f"{item.name} ({'tolerates' if item.tolerates_restatement else 'does not tolerate'}"
        " restatement)"
        for item in consumers
    )


def _cost(resolved: Resolved, estimate: Estimate) -> str:
    cost = "no prices configured" if estimate.cost_usd is None else f"{estimate.cost_usd} USD"
    return (
        f"reads {estimate.input_rows} rows in {estimate.input_files} files; {cost}; "
        f"reaches {len(resolved.scope.partitions)} partitions and nothing else"
    )
