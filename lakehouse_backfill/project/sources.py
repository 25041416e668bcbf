"""Commands on sources: what lies outside the lake comes into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import resolve_actor
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.core.migration.migrate import MigrationPorts
    from lakehouse_backfill.domain.contract import Contract
    from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
    from lakehouse_backfill.results import migrations, sources


class SourceCommands(ProjectBase):
    """`land`, `receive`, `migrate`, and what they would do."""

    def land(
        self,
        source: str,
        from_: str | None = None,
        to: str | None = None,
        *,
        reconcile: bool = False,
    ) -> sources.LandResult:
        """Bring what is new in a source into its raw table, each row once, as a pinned snapshot.

        What the webhook of an API has received and not landed yet is landed first. With `reconcile`
        an API is read whole, or the whole range of it: what it does not have any more is landed as
        deletions, what it changed silently as corrections. A landing that was cut off is continued.
        Raises NotFound, ConfigError, Blocked (the source is incomplete), Conflict (another process
        lands it), SourceDown.
        """
        from lakehouse_backfill.config.sources import find_source, landing_request
        from lakehouse_backfill.core.landing.land import land
        from lakehouse_backfill.wiring.receiver import land_left_over
        from lakehouse_backfill.wiring.sources import landing_ports

        declared = find_source(self.folder, source)
        request = landing_request(from_, to, reconcile=reconcile)
        notes = land_left_over(self.wiring, declared)
        done = land(landing_ports(self.wiring, declared, looks=False), declared, request)
        return results.sources.LandResult.of(declared, done, notes)

    def receive(
        self,
        source: str,
        port: int,
        host: str = "127.0.0.1",
        seconds: float | None = None,
    ) -> sources.ReceiveResult:
        """Take the requests of a webhook until SIGINT or SIGTERM, or for `seconds`.

        Each request is kept durably before it is acknowledged, and landed in a commit with others.
        Raises NotFound, ConfigError, Conflict (another process receives for the source on this
        machine).
        """
        from lakehouse_backfill.config.sources import find_source
        from lakehouse_backfill.wiring.receiver import Address, run_receiver

        declared = find_source(self.folder, source)
        return run_receiver(self.wiring, declared, Address(host, port), seconds)

    def preview_landing(
        self,
        source: str,
        from_: str | None = None,
        to: str | None = None,
        *,
        reconcile: bool = False,
    ) -> sources.LandPreviewResult:
        """Return what `land` would read; nothing is changed."""
        from lakehouse_backfill.config.sources import find_source, landing_request
        from lakehouse_backfill.core.landing.land import preview_landing
        from lakehouse_backfill.wiring.sources import landing_ports

        declared = find_source(self.folder, source)
        request = landing_request(from_, to, reconcile=reconcile)
        ports = landing_ports(self.wiring, declared, looks=True)
        survey = preview_landing(ports, declared, request)
        return results.sources.LandPreviewResult.of(declared, survey)

    def migrate(self, migration: str, by: str) -> migrations.MigrateResult:
        """Bring what an old place holds into a product's table, proven before readers see it.

        A migration that was cut off is continued; one that is accepted stays as it is. Raises
        NotFound, ConfigError, Blocked (sides that differ), Conflict (the old place changed).
        """
        from lakehouse_backfill.core.migration.migrate import migrate

        declared, contract, ports = self._migration(migration)
        done = migrate(self.wiring.context, ports, declared, contract, resolve_actor(by))
        return results.migrations.MigrateResult.of(declared, contract.table, done)

    def preview_migration(self, migration: str) -> migrations.MigratePreviewResult:
        """Return what `migrate` would do with each part of the old place; nothing is changed."""
        from lakehouse_backfill.core.migration.migrate import preview_migration

        declared, contract, ports = self._migration(migration, looks=True)
        survey = preview_migration(ports, contract)
        return results.migrations.MigratePreviewResult.of(declared, contract.table, survey)

    def undo_migration(self, migration: str, by: str) -> migrations.MigrationUndoneResult:
        """Take a migration back: pointer and table go, no file is deleted.

        Raises Blocked once a run was published, or the table holds other rows.
        """
        from lakehouse_backfill.core.migration.migrate import undo_migration

        declared, contract, ports = self._migration(migration)
        state = undo_migration(self.wiring.context, ports, declared, contract, resolve_actor(by))
        return results.migrations.MigrationUndoneResult.of(declared, contract.table, state)

    def _migration(
        self, name: str, *, looks: bool = False
    ) -> tuple[MigrationDeclaration, Contract, MigrationPorts]:
        from lakehouse_backfill.config.migrations import find_migration
        from lakehouse_backfill.wiring.migrations import migration_ports

        declared = find_migration(self.folder, name)
        contract = self.wiring.contract(declared.product)
        ports = migration_ports(self.wiring, declared, contract, looks=looks)
        return declared, contract, ports
