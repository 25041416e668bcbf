"""Findings in the code of a job: judged when planned; those that a person allows don't block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse_backfill.core.guards.determinism import scan_python
from lakehouse_backfill.core.guards.python_source import parse_job
from lakehouse_backfill.core.guards.sql_source import scan_sql, scan_sql_file
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest, TransformRef
from lakehouse_backfill.errors import Fault, NonDeterministic

ALLOW_FIX = (
    "write what each line suggests; or let a finding pass, for the record, by its kind, file and "
    "reason under safety.allow_nondeterminism of the run manifest, and plan again"
)


def scan_code(texts: Mapping[str, str], transform: TransformRef) -> tuple[Finding, ...]:
    """Return what is found in the code of a transform, given as text by path.

    Raises ConfigError for Python files that can't be parsed.
    """
    if transform.file.endswith(".sql"):
        return scan_sql_file(texts[transform.file], transform.file)
    python = {file: text for file, text in texts.items() if file.endswith(".py")}
    if transform.file not in python:
        return ()
    source = parse_job(python, transform.file)
    return scan_python(source, transform.name, transform.version, scan_sql)


def judge_code(texts: Mapping[str, str], manifest: RunManifest) -> tuple[Finding, ...]:
    """Return the findings in the code that a run executes, with the reasons that allow them.

    Code of another engine is not judged. Raises NonDeterministic, which names each finding that
    blocks.
    """
    if manifest.transform.writer == "external":
        return ()
    found = with_allowances(scan_code(texts, manifest.transform), manifest)
    require_none_blocking(found, state=NOTHING_PLANNED)
    return found


def with_allowances(findings: Iterable[Finding], manifest: RunManifest) -> tuple[Finding, ...]:
    """Return the findings with the reasons that the manifest gives."""
    allowed = manifest.safety.allow_nondeterminism
    return tuple(
        one.model_copy(
            update={"allowed": next((each.reason for each in allowed if each.covers(one)), "")}
        )
        for one in findings
    )


def require_none_blocking(findings: Iterable[Finding], *, state: str) -> None:
    """Raise NonDeterministic, which names each finding that blocks and what to write instead."""
    blocking = [one for one in findings if one.is_blocking]
    if blocking:
        faults = tuple(
            Fault(one.file, one.line, one.kind, f"{one.found} {one.spec.problem}", one.spec.instead)
            for one in blocking
        )
        raise NonDeterministic(
            f"two runs of the job on the same input may differ, in {len(blocking)} places",
            faults=faults,
            state=state,
            fix=ALLOW_FIX,
        )


def describe_findings(findings: tuple[Finding, ...], manifest: RunManifest, files: int) -> str:
    """Describe in one phrase what the scan of the code found, for the checklist."""
    if manifest.transform.writer == "external":
        return "its code was not looked at for non-determinism"
    if not findings:
        return f"no non-determinism found in {files} files of code (docs/determinism.md)"
    texts = [
        f"{one.kind} at {one.place}" + (f" ({one.allowed})" if one.allowed else " (only shown)")
        for one in findings
    ]
    return f"non-determinism allowed or only shown: {', '.join(texts)}"
