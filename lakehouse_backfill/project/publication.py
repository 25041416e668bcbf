"""Commands on what readers see: publish, versions, accepted, evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import resolve_actor
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.results import publications


class PublicationCommands(ProjectBase):
    """What makes a result visible, and what readers and auditors get."""

    def preview_publish(self, run: str, by: str) -> publications.PublishPreviewResult:
        """Describe what `publish` would do, with its checks; nothing is changed.

        Raises what `publish` raises before it commits. Hooks are not called.
        """
        from lakehouse_backfill.core.publication.publish import (
            finished_publication,
            preview_publication,
        )

        context = self.wiring.context
        plan = preview_publication(context, run, resolve_actor(by))
        return results.publications.PublishPreviewResult.of(
            plan, context.versions.pointer(plan.product), finished_publication(context, plan)
        )

    def publish(
        self,
        run: str,
        by: str,
        *,
        take_over: bool = False,
        check_files: bool | None = None,
        note: str = "",
    ) -> publications.PublishResult:
        """Make an accepted run what readers see; the same again changes nothing.

        With `check_files` the staged files are hashed before; None: in `prod` profiles. `note` is
        what `note` would add.
        """
        from lakehouse_backfill.core.publication import post_publish
        from lakehouse_backfill.core.publication.publish import publish_with_catch_up
        from lakehouse_backfill.core.runs import notes

        context = self._context(take_over=take_over, check_files=check_files)
        by, note = resolve_actor(by), notes.require_note(note)
        with self._pages.written_on_error(run, only_existing=True), self._anchored_on_error(run):
            published = publish_with_catch_up(context, run, by)
        done = published.publication.run_id or run
        followed = post_publish.post_publish_outcome(
            context, context.runs.plan(done), published.publication
        )
        warnings: tuple[str, ...] = ()
        if done != run:
            self._pages.update_existing(run)
            warnings = (f"live commits came: {done} caught up with them and replaces {run}",)
        found = results.publications.PublishResult.of(
            context.runs.status(done), published, followed, warnings
        )
        command = self._close_with_note(done, by, note)
        linked = self._pages.add_links(replace(found, note_command=command), done)
        self._keep_heads(done, products=(published.publication.product,))
        self._record_accepted_files(done)
        return linked

    def publish_together(
        self,
        runs: tuple[str, ...],
        by: str,
        *,
        take_over: bool = False,
        check_files: bool | None = None,
    ) -> publications.PublishTogetherResult:
        """Make accepted runs of several products, all pinned or all followed, visible at once."""
        from lakehouse_backfill.core.publication.publish import publish_together

        context = self._context(take_over=take_over, check_files=check_files)
        with (
            self._pages.written_on_error(*runs, only_existing=True),
            self._anchored_on_error(*runs),
        ):
            done = publish_together(context, tuple(runs), resolve_actor(by))
        found = [
            results.publications.PublishResult.of(context.runs.status(run), one)
            for run, one in done.items()
        ]
        linked = self._pages.add_links(
            results.publications.PublishTogetherResult(published=tuple(found)), *runs
        )
        self._keep_heads(*done, products=(one.publication.product for one in done.values()))
        self._record_accepted_files(*done)
        return linked

    def versions(self, product: str) -> publications.VersionsResult:
        """List the accepted versions of a product, newest first."""
        from lakehouse_backfill.core.versions.readers import accepted_versions

        try:
            rows = accepted_versions(self.wiring.context, product)
        except NotFound:
            self.wiring.contract(product)  # a name that is no product's is the likelier mistake
            raise
        return results.publications.VersionsResult(
            product=product,
            versions=tuple(
                results.publications.VersionLine.of(row, is_accepted=number == 0)
                for number, row in enumerate(rows)
            ),
        )

    def accepted(
        self,
        product: str,
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> Any:
        """Return what consumers of a product read: Spark DataFrame, Arrow table, DuckDB relation.

        Raises NotFound, and TargetChanged when `strict` and the accepted partitions have changed.
        """
        from lakehouse_backfill.core.versions.readers import resolve_accepted

        contract = self.wiring.contract(product)
        found = resolve_accepted(self.wiring.context, contract, strict=strict)
        return self.wiring.read_snapshot(engine, found.table, found.snapshot_id)

    def accepted_together(
        self,
        products: tuple[str, ...],
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> dict[str, Any]:
        """Return what consumers of several products read, all as accepted at one moment.

        Pinned products that were published together are seen together: old or new, never a mix.
        """
        from lakehouse_backfill.core.versions.readers import resolve_accepted_together

        contracts = tuple(self.wiring.contract(product) for product in products)
        found = resolve_accepted_together(self.wiring.context, contracts, strict=strict)
        return {
            product: self.wiring.read_snapshot(engine, one.table, one.snapshot_id)
            for product, one in found.items()
        }

    def evidence(self, run: str, export: str | Path | None = None) -> publications.EvidenceResult:
        """Write the evidence page and archive of a run and say where they are."""
        folder = Path(export) if export else None
        if folder is not None and (file := _blocking_file(folder)) is not None:
            raise ConfigError(
                f"{file} is a file, not a folder that page and archive can be written into",
                state="nothing was written",
                fix="name a folder: --export DIR",
            )
        report = self._pages.write(run, folder)
        return results.publications.EvidenceResult(
            report=str(report),
            archive=str(report.with_suffix(".json")),
            index=str(report.with_name("index.html")),
        )

    def evidence_document(self, run: str) -> dict[str, Any]:
        """Return what shows why a run was (or was not) accepted, as one document."""
        from lakehouse_backfill.core.evidence import document

        return document.evidence_document(self.wiring.context, run)


def _blocking_file(folder: Path) -> Path | None:
    """Return what stands in the way of the folder: itself, or one above it, that is none."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    return None if there is None or there.is_dir() else there
