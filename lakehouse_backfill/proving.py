"""The proving part of the Python API: what is stored is what was accepted; it comes out again."""

from __future__ import annotations

from pathlib import Path

from lakehouse_backfill.looking import Result
from lakehouse_backfill.publishing import Publishing
from lakehouse_backfill.report import results


class Proving(Publishing):
    """The verbs that prove something about a run that was accepted; nothing of it is changed."""

    def verify(
        self,
        run: str,
        deep: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
        evidence: str | Path | None = None,
    ) -> Result:
        """Compare what is stored with what was accepted; with `deep` data files are read too.

        `evidence` is a folder that page and archive were exported to; the project's own if absent.
        """
        from lakehouse_backfill.core.evidence.verify import verify
        from lakehouse_backfill.domain.table import StoredCheck
        from lakehouse_backfill.errors import Tampered
        from lakehouse_backfill.report import page

        found = verify(self.wiring.bench, run, deep=deep)
        folder = Path(evidence) if evidence else self.wiring.evidence_folder
        try:
            files = page.check_evidence_files(folder, self.evidence_document(run))
        except Tampered as error:
            because = f"the lake gives no document to compare with: {error.problem}"
            files = (StoredCheck(name="evidence files", ok=None, because=because),)
        return results.verified(found, files, deep=deep)

    def reproduce(self, run: str) -> Result:
        """Execute a run's archived code on its pinned inputs again; compare checksums."""
        from lakehouse_backfill.core.evidence.reproduce import reproduce

        self.wiring.require_java()
        return results.reproduced(reproduce(self.wiring.bench, run))

    def audit_guarantees(self, product: str | None = None) -> Result:
        """Test determinism, idempotence, pins and fences on a sampled chunk of published runs."""
        from lakehouse_backfill.core.evidence.reproduce import audit_guarantees

        self.wiring.require_java()
        return results.guaranteed(audit_guarantees(self.wiring.bench, product))
