"""What `verify`, `reproduce` and `audit guarantees` found, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.domain.stored import StoredCheck

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.guarantees import ProductGuarantees
    from lakehouse_backfill.core.evidence.reproduce import ReproduceResult
    from lakehouse_backfill.core.evidence.verify import VerifyResult


def check_line(check: StoredCheck) -> dict[str, Any]:
    """Give one comparison; `ok` is null where nothing could be compared."""
    return check.model_dump(mode="json")


def verified(found: VerifyResult, files: tuple[StoredCheck, ...], *, deep: bool) -> dict[str, Any]:
    """Give all comparisons of a run, and which data was read for them."""
    checks = [check_line(check) for check in (*found.checks, *files)]
    return {
        "run_id": found.run_id,
        "deep": deep,
        "files_read": found.data_read.files,
        "partitions_read_by_spark": found.data_read.partitions_by_spark,
        "intact": all(check["ok"] is not False for check in checks),
        "checks": checks,
    }


def reproduced(found: ReproduceResult) -> dict[str, Any]:
    """Give what came out again, partition by partition."""
    return {
        "run_id": found.run_id,
        "equal": found.equal,
        "code": found.code,
        "scratch_table": found.scratch_table,
        "partitions": [vars(one) for one in found.partitions],
        "notes": list(found.notes),
    }


def guaranteed(found: tuple[ProductGuarantees, ...]) -> dict[str, Any]:
    """Give what was sampled of each product, and what held."""
    checks = [
        {"product": one.product, "run_id": one.run_id, "chunk_id": one.chunk_id} | check_line(check)
        for one in found
        for check in one.checks
    ]
    return {
        "sampled": [
            {
                "product": one.product,
                "run_id": one.run_id,
                "chunk_id": one.chunk_id,
                "partitions": list(one.partitions),
                "because": one.because,
            }
            for one in found
        ],
        "held": all(check["ok"] is not False for check in checks),
        "checks": checks,
    }
