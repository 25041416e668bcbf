"""Commands about what runs recorded: what is stale, and whether it is still what was accepted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import resolve_actor
from lakehouse_backfill.errors import Tampered
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.results import origins, proof


class ProofCommands(ProjectBase):
    """Origins of rows, and checks of logs, files and guarantees."""

    def stale(
        self, product: str | None = None, by: str | None = None, *, draft: bool = False
    ) -> origins.StaleResult:
        """Find partitions whose inputs or code changed since a run made them, and missing ones.

        With `draft` a run manifest is written for each product that repairs exactly these. Only
        metadata is read. What is wrong with one of all products is its note, and `error()` names
        it; of a single product it is raised. Raises NotFound (the product), ConfigError.
        """
        from lakehouse_backfill import onboarding
        from lakehouse_backfill.config.contracts import list_contracts
        from lakehouse_backfill.config.project_files import code_versions
        from lakehouse_backfill.core.evidence import staleness

        wiring, versions = self.wiring, partial(code_versions, self.folder)
        if product is None:
            names = list_contracts(self.folder)
            all_products = staleness.find_stale_products(
                wiring.context, names, wiring.contract, versions
            )
            found = tuple(all_products)
        else:
            found = (staleness.find_stale(wiring.context, wiring.contract(product), versions),)
        drafts = {}
        if draft:
            who = resolve_actor(by)
            drafts = onboarding.add_repairs(wiring, found, who)
        return results.origins.StaleResult.of(found, drafts, is_drafted=draft)

    def lineage(
        self,
        target: str,
        partition: str | None = None,
        openlineage: str | Path | None = None,
    ) -> origins.LineageResult:
        """Say what a table's partitions were computed from, and what was computed from them.

        `target` is a product, its table, or an input of one. Only metadata is read. `openlineage`
        is a file: it gets the events of these runs. Raises NotFound when no published run computed
        or read the table, ConfigError when its own contract is wrong.
        """
        from lakehouse_backfill.config.contracts import list_broken_contracts
        from lakehouse_backfill.core.evidence.lineage import find_lineage, runs_of_lineage

        wiring, broken = self.wiring, list_broken_contracts(self.folder)
        contracts = [wiring.contract(target)] if target in broken else wiring.valid_contracts()
        found = find_lineage(wiring.context, contracts, target, partition, broken)
        if openlineage is None:
            return results.origins.LineageResult.of(found)
        from lakehouse_backfill import __version__
        from lakehouse_backfill.report.openlineage import write_events

        runs = runs_of_lineage(wiring.context, found)
        catalog = wiring.context.profile.catalog.get("name", "lake")
        count = write_events(runs, catalog, __version__, Path(openlineage))
        return results.origins.LineageResult.of(found, str(openlineage), count)

    def why(self, table: str, partition: str | None = None) -> origins.WhyResult:
        """Tell the story of a partition, or of a product's newest publication.

        Raises NotFound without a contract, when no run of the product is published, and for a
        partition that has no rows and no run; ConfigError for a text that is no partition.
        """
        from lakehouse_backfill.config.contracts import find_contract_of_table
        from lakehouse_backfill.config.project_files import code_versions
        from lakehouse_backfill.core.evidence import story
        from lakehouse_backfill.core.evidence.staleness import find_stale

        context = self.wiring.context
        contract = find_contract_of_table(self.folder, table)
        if contract is None:
            story.require_no_input(context, self.wiring.valid_contracts(), table)
            contract = self.wiring.contract(table)
        found = story.tell_story(context, contract, partition)
        if partition is None:
            return results.origins.WhyResult.of(found, None)
        product = find_stale(context, contract, partial(code_versions, self.folder))
        status = next((one for one in product.partitions if one.partition == partition), None)
        if status is None and not found.acts and not found.written_since:
            raise story.no_story_error(context, contract.product, partition)
        return results.origins.WhyResult.of(found, status)

    def verify(
        self,
        run: str,
        *,
        deep: bool = False,
        evidence: str | Path | None = None,
    ) -> proof.VerifyResult:
        """Compare what is stored with what was accepted; with `deep` data files are read too.

        `evidence` is a folder that page and archive were exported to; the project's own if absent.
        """
        from lakehouse_backfill.core.evidence.document import evidence_document
        from lakehouse_backfill.core.evidence.verification.verify import verify
        from lakehouse_backfill.domain.checks import StoredCheck
        from lakehouse_backfill.report import page

        found = verify(self.wiring.context, run, deep=deep)
        folder = Path(evidence) if evidence else self.wiring.evidence_folder
        try:
            files = page.check_evidence_files(folder, evidence_document(self.wiring.context, run))
        except Tampered as error:
            because = f"the lake gives no document to compare with: {error.problem}"
            files = (StoredCheck(name="evidence files", ok=None, because=because),)
        return results.proof.VerifyResult.of(found, files, deep=deep)

    def reproduce(self, run: str, by: str | None = None) -> proof.ReproduceResult:
        """Execute a run's archived code on its pinned inputs again; compare checksums."""
        from lakehouse_backfill.core.evidence.reproduce import reproduce

        self._load_engine(run)
        return results.proof.ReproduceResult.of(
            reproduce(self.wiring.context, run, resolve_actor(by))
        )

    def audit_verify(
        self, against: str | Path | None = None, *, anchor: bool = False
    ) -> proof.AuditVerifyResult:
        """Check that the logs of all runs are as they were written; else `first_bad` says where.

        Signatures are verified too. With `anchor`, the heads that the profile's anchor holds are
        looked for.

        `against` is a file with the JSON of an earlier result, kept where nobody who writes to the
        lake can: a log that was rewritten as a whole is found with it, and not without.
        """
        from lakehouse_backfill.config.project_files import read_kept_heads
        from lakehouse_backfill.core.evidence.verification.audit import audit_all

        kept = read_kept_heads(Path(against)) if against else None
        found = audit_all(self.wiring.context, kept, with_anchor=anchor)
        return results.proof.AuditVerifyResult.of(found)

    def audit_guarantees(
        self, product: str | None = None, by: str | None = None
    ) -> proof.AuditGuaranteesResult:
        """Test determinism, idempotence, pins and fences on a sampled chunk of published runs."""
        from lakehouse_backfill.core.evidence.reproduce import audit_guarantees

        self.wiring.require_java()
        return results.proof.AuditGuaranteesResult.of(
            audit_guarantees(self.wiring.context, product, resolve_actor(by))
        )
