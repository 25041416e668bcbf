"""One publication: whether it may be published, its row, and how it is finished or released.

A run that is published at once is one publication; a run that is published in steps is several.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.approval import acceptance, signatures
from lakehouse_backfill.core.approval.decisions import (
    logged_validation,
    require_gates_open,
    trusted_events,
)
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication import expose
from lakehouse_backfill.core.publication.dual_read import require_dual_reads
from lakehouse_backfill.core.publication.rollback import publication_group
from lakehouse_backfill.core.runs import anchors, hooks, lifecycle, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.versions import correction_topic, reserve, steps
from lakehouse_backfill.domain.guards.safety import next_opening
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import REHEARSAL_PROPERTY, Publication
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.errors import (
    ApprovalMissing,
    BackfillError,
    Blocked,
    ChecksFailed,
    NotAllowed,
)


def require_window_open(plan: Plan, now: datetime) -> None:
    """Raise Blocked outside the publish window of the run; the error has the next opening."""
    window = plan.resolved.manifest.safety.publish_window
    opening = None if window is None else next_opening(window, now)
    if window is None or opening is None:
        return
    at = opening.isoformat(timespec="minutes")
    raise Blocked(
        f"{plan.run_id} may be published between {window.from_} and {window.to} UTC; that opens "
        f"at {at}",
        state="nothing was published; the result stays accepted",
        fix=f"give the same command after {at}",
        data={"opens_at": at},
    )


PUBLICATION = "publication"


@dataclass(frozen=True)
class PublishOutcome:
    """A publication that readers see; `swap` is None when this call swapped no files in."""

    publication: Publication
    swap: CommitResult | None
    was_published: bool


@dataclass(frozen=True)
class DrivenRun:
    """A run that this process drives through its publication."""

    context: Context
    plan: Plan
    status: RunStatus
    by: str

    @property
    def history(self) -> tuple[Publication, ...]:
        """The versions of the product as they are now, newest first."""
        return self.context.versions.history(self.plan.product)

    def resume(self) -> tuple[Publication, CommitResult] | None:
        """Finish the run's reservation if its swap has landed; return None if it has not."""
        context, plan = self.context, self.plan
        pending = self.own_reservation
        if pending is None or publish_modes.is_pinned_product(plan):
            return None
        swap = expose.find_landed_swap(context, plan, pending)
        if swap is None:
            return None
        resumed = pending.model_copy(update={"epoch": self.status.epoch, "driver": context.driver})
        if signatures.pending_publication_fault(context, plan, pending):
            resumed = self._signed_anew(resumed)
        row = reserve.reserve_version(context, resumed, None)
        return reserve.finalise_version(context, row, swap, "publish"), swap

    @property
    def own_reservation(self) -> Publication | None:
        """The pending row of the run, if it has one."""
        pending = self.context.versions.pointer(self.plan.product).pending
        return pending if pending is not None and pending.run_id == self.plan.run_id else None

    def require_vouched(self, row: Publication) -> None:
        """Raise NotAllowed when readers see a version that nobody with the role signed.

        Only where signatures are required: the run is not finished in the name of who wrote it.
        """
        fault = signatures.published_fault(self.context, self.plan, row)
        if fault:
            back = str(row.supersedes or 0)
            raise NotAllowed(
                f"{fault}; {self.plan.run_id} is not finished",
                state=f"readers see version {row.version} of {row.product}",
                fix=command_line("rollback", row.product, "--to", back, "--reason", "TEXT"),
            )

    def _signed_anew(self, pending: Publication) -> Publication:
        """Return a landed reservation that nobody vouches for as this process signs it.

        What it says is worked out again from the log. Raises ApprovalMissing and NotAllowed unless
        all that opens a publication is signed, and this process has a key.
        """
        context, plan = self.context, self.plan
        events = trusted_events(context, self.status)
        logged = logged_validation(context, events, plan.run_id)
        digest, snapshot_id = (logged[0], logged[1].shadow_snapshot_id) if logged else ("", None)
        try:
            signatures.require_signed_run(context, plan, events, digest, self.by)
        except Blocked as error:
            error.state = (
                f"the files of {plan.run_id} are in {pending.table}; no version was accepted"
            )
            raise
        accepted = expose.AcceptedResult(digest, snapshot_id)
        run = AcceptedRun(context, plan, self.status, self.by, events, accepted)
        kept = ("version", "token", "supersedes", "before_snapshot_id")
        row = run.draft(pending.scope).model_copy(
            update={name: getattr(pending, name) for name in kept}
        )
        return reserve.sign_row(context, row)

    def release(self, error: BackfillError) -> None:
        """Release the reservation, whose swap has not landed, so that it can be published again.

        The run becomes accepted again. A run that is published in steps is halted instead when
        readers see some of its partitions.
        """
        context, plan, epoch = self.context, self.plan, self.status.epoch
        pending = self.own_reservation
        if pending is not None:
            reserve.release_version(context, pending, epoch)
        history = self.history
        # Also covers a process that released the version and crashed before it called the hooks.
        act = hooks.released_token(history, plan.run_id)
        if publish_modes.is_pinned_product(plan) and publication_group(context, plan.run_id):
            act = hooks.group_act_id(context, plan)
        if act is not None:
            hooks.notify_released(context, plan, act, epoch, error.problem)
        visible = steps.visible_partitions(history, plan.run_id)
        verb = "halt publication" if steps.is_stepwise(plan) and visible else "release"
        context.move(self.status, plan, verb, self.by, problem=error.problem, stopped_by=error.code)
        if verb in hooks.HALT_VERBS:
            hooks.notify_halted(context, plan)

    def finish(self, row: Publication) -> None:
        """Refresh the view, record the publication as evidence and finish the run.

        A view that fails is raised last: the evidence and the state of the run are written before.
        The evidence says whether the table holds the accepted rows; `require_published_rows_match`
        checks it.
        """
        context, plan = self.context, self.plan
        compared = expose.compare_published_rows(context, plan, row)
        try:
            reserve.refresh_view(context, plan.resolved.contract)
        finally:
            document = row.model_dump(mode="json") | ({"verified": compared} if compared else {})
            digest = context.evidence.record(plan.run_id, PUBLICATION, document, self.status.epoch)
            context.move(
                self.status, plan, "finish publishing", self.by,
                version=row.version, token=row.token, digest=digest,
            )  # fmt: skip


@dataclass(frozen=True)
class AcceptedRun(DrivenRun):
    """A driven run whose accepted result may be published, and the log that says so."""

    events: tuple[Event, ...]
    accepted: expose.AcceptedResult

    def draft(self, scope: Scope | None = None) -> Publication:
        """Build the row to reserve; the reservation sets `version` and `supersedes`.

        `scope` is the part of the run that becomes visible; None means the whole run.
        """
        plan, events, digest = self.plan, self.events, self.accepted.digest
        return Publication(
            product=plan.product,
            version=0,
            token=uuid4().hex,
            action="reserve",
            run_id=plan.run_id,
            table=plan.resolved.contract.table,
            snapshot_id=None,
            before_snapshot_id=None,
            scope=scope or plan.resolved.scope,
            supersedes=None,
            at=self.context.clock.now(),
            by=self.by,
            approved_by=roles.decision_makers(events, "approve", plan.manifest_hash),
            accepted_by=roles.decision_makers(events, "accept", digest),
            manifest_hash=plan.manifest_hash,
            result_digest=digest,
            evidence_digest=acceptance.newest_archive_digest(events, digest),
            reason=plan.resolved.manifest.run.reason,
            epoch=self.status.epoch,
            driver=self.context.driver,
        )

    def reserve_and_expose(self, wanted: Publication) -> tuple[Publication, CommitResult]:
        """Reserve the version, expose the files and move the pointer.

        A refusal releases the version and moves the run to a state from which it can be published
        again.
        """
        context, plan = self.context, self.plan
        base = plan.resolved.target if publish_modes.is_pinned_product(plan) else None
        reserved: Publication | None = None
        begun = self.own_reservation
        if begun is not None and signatures.pending_publication_fault(context, plan, begun):
            # Nobody vouches for it, and nothing of it has landed: another one takes its place.
            reserve.release_version(context, begun, self.status.epoch)
        try:
            head = head_snapshot_id(context, plan.resolved.contract.table)
            reserved = reserve.reserve_version(context, wanted, head, base)
            token, version = reserved.token, reserved.version
            with context.journal.bind(**plan.labels).span(
                "publish", version=version, publication=token
            ):
                hooks.require_hooks(
                    context, plan, "before_publish", token, self.status.epoch, version=version
                )
                swap = expose.expose_result(context, plan, reserved, self.accepted)
        except reserve.REFUSALS as error:
            if reserved is None or reserve.may_release(reserved, wanted, error):
                reserve.name_state(error, "nothing was published; readers see what they saw before")
                self.release(error)
            raise
        return reserve.finalise_version(context, reserved, swap, "publish"), swap


def require_published_rows_match(context: Context, plan: Plan, row: Publication) -> None:
    """Raise ChecksFailed when the evidence says that readers see other rows in `row`.

    Every call raises it again.
    """
    recorded = context.evidence.newest(plan.run_id, PUBLICATION)
    document = recorded[1] if recorded else {}
    compared = document.get("verified") or {}
    if document.get("token") != row.token or compared.get("passed") is not False:
        return
    back = command_line("rollback", plan.product, "--to", str(row.supersedes or 0), "--reason")
    raise ChecksFailed(
        f"{row.table} does not hold what was accepted: {compared['detail']}",
        state=f"version {row.version} of {plan.product} is published, and readers see it",
        fix=f"{back} TEXT",
    )


def require_copy_of_rehearsal(context: Context, plan: Plan) -> None:
    """Raise NotAllowed when a rehearsal would change a table that is no copy for rehearsals."""
    target = plan.resolved.target
    if not plan.resolved.rehearses or target.uuid is None:
        return
    info = context.tables.describe(target.table)
    if info is None or REHEARSAL_PROPERTY not in info.properties:
        raise NotAllowed(
            f"{plan.run_id} is a rehearsal, and {target.table} of this lake is no copy for "
            "rehearsals",
            state="nothing was published",
            fix=f"plan the real run: {plan_command(plan.manifest_file)}",
        )


def check_publishable(
    context: Context, plan: Plan, events: tuple[Event, ...], by: str
) -> expose.AcceptedResult:
    """Check the pointer, roles, decisions, gates and the shadow; return what was accepted.

    Raises NotAllowed, ApprovalMissing, ChecksFailed, Blocked (also: switched off in the profile),
    Tampered, TargetChanged, Unsupported.
    """
    contract = plan.resolved.contract
    roles.require_switched_on(context.profile, "publish", plan.product, "nothing was published")
    roles.require_pilot(context.profile, plan.product)
    context.versions.whole_pointer(plan.product)
    publish_modes.require_publishable_mode(plan)
    require_copy_of_rehearsal(context, plan)
    lifecycle.require_not_retired(events)
    roles.require_plan_environment(plan, context.profile.environment)
    signers.require_bound_environment(
        context.profile, context.versions, context.tables, plan.product, contract.table
    )
    roles.require_role(contract, "publish", by, context.profile.environment)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    logged = logged_validation(context, events, plan.run_id)
    if logged is None:
        raise ApprovalMissing(
            f"{plan.run_id} was never validated", fix=f"lakehouse-backfill validate {plan.run_id}"
        )
    digest, validation = logged
    roles.require_decision(events, "accept", digest, plan.run_id)
    require_gates_open(events, plan.run_id, digest, validation)
    signatures.require_signed_run(context, plan, events, digest, by)
    followed = plan.resolved.catch_up
    runs = (plan.run_id, *((followed.of,) if followed else ()))
    anchors.require_kept_history(context, plan.product, runs)
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None or shadow.snapshot_id != validation.shadow_snapshot_id:
        raise ApprovalMissing(
            f"{plan.shadow_table} is not what was accepted: it changed after validation",
            state="nothing was published",
            fix=f"lakehouse-backfill validate {plan.run_id}, then accept it again",
        )
    require_dual_reads(plan, events, validation.shadow_snapshot_id)
    if context.check_files:
        acceptance.require_accepted_bytes(context, plan, events, digest)
    expose.require_no_published_corrections(context, plan)
    effect_log.require_messages_hold(context, plan)
    require_window_open(plan, context.clock.now())
    correction_topic.require_open_topic(context, plan)
    deletions.require_no_tombstoned_rows(context, plan, validation.shadow_snapshot_id)
    deletions.require_no_deleted_rows(context, plan, validation.shadow_snapshot_id)
    return expose.AcceptedResult(digest, validation.shadow_snapshot_id)
