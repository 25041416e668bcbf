"""Correction events in a topic: sent once the act is accepted, each once (U9).

The table of events is what is sent from; nothing is sent before its act moved the pointer. Of each
act is recorded, as evidence of its run, where the topic ended before the first record, and later
that all are sent. A sending that was cut off looks at the topic from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lakehouse_backfill.command_lines import REASON_PLACEHOLDER, command_line
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import corrections, pointer
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.sources.topics import CorrectionTopic, TopicRequest, TopicState
from lakehouse_backfill.errors import BackfillError, Blocked, NotFound, Tampered

#: Kind of the documents that say how far the events of an act are sent.
TOPIC_LEDGER = "correction-topic"


@dataclass(frozen=True)
class TopicAct:
    """A publication or rollback whose events belong in a topic, and the run of its headers."""

    row: Publication
    plan: Plan
    topic: CorrectionTopic


def require_open_topic(context: Context, plan: Plan) -> None:
    """Raise what planning a topic raises, before the events of a run are written anywhere."""
    topic = _topic(plan)
    if topic is not None:
        resolved = plan.resolved
        state = "nothing was published"
        found = corrections.check_topic(context, resolved.manifest, resolved.contract, topic, state)
        before, now = resolved.topic_partitions, len(found.ends)
        if before not in (0, now):
            raise Blocked(
                f"{topic.name} has {now} partitions, and had {before} when {plan.run_id} was "
                "planned: keys go to other partitions now, so that consumers may read the events "
                "of one in another order than they were sent",
                state=state,
                fix=f"let consumers read {topic.name} to its end, or name a new topic; then: "
                f"lakehouse-backfill plan --revise {plan.run_id}",
            )


def pending_topics(context: Context, product: str) -> tuple[str, ...]:
    """Return what is left to send of the newest acts of a product, as sentences."""
    return tuple(
        f"events of version {act.row.version} to {act.topic.name}"
        for act in _unsent_acts(context, product)
    )


def send_pending(context: Context, product: str) -> int:
    """Send the events that topics lack, act by act, the oldest first; return how many were sent.

    Order of side effects for each act: the topic's ends (evidence); transactions of records; all
    are sent (evidence). A second call sends nothing. Raises Blocked (the switch `live_topic`, a
    topic that is another one, or that lost records of the act), Conflict (another process sends),
    SourceDown. The act itself stays as it is.
    """
    return sum(_send(context, act) for act in _unsent_acts(context, product))


def give_up(context: Context, run_id: str, by: str, reason: str) -> tuple[str, ...]:
    """Record that the events that a topic lacks are never sent; return them, as sentences.

    They are those of the newest acts of the run's product: of a topic that is gone, or of which
    nobody can tell what it has. The act and the table of events stay as they are. Raises NotFound
    when nothing is unsent, NotAllowed without the role to publish.
    """
    plan = context.runs.plan(run_id)
    roles.require_role(plan.resolved.contract, "publish", by, context.profile.environment)
    acts = _unsent_acts(context, plan.product)
    if not acts:
        raise NotFound(
            f"the topics of {plan.product} lack no events",
            state="nothing was changed",
            fix=f"lakehouse-backfill status {run_id}",
        )
    given_up = pending_topics(context, plan.product)
    for act in acts:
        _record(context, act, None, is_sent=True, given_up_by=by, reason=reason)
        context.journal.bind(**act.plan.labels).log(
            "events given up", version=act.row.version, topic=act.topic.name, by=by, reason=reason
        )
    return given_up


def give_up_command(run_id: str) -> str:
    """Return the command that gives the unsent events of a run's product up."""
    return command_line("recover", run_id, "--give-up-topic", REASON_PLACEHOLDER)


def _unsent_acts(context: Context, product: str) -> tuple[TopicAct, ...]:
    """Return the acts that are not sent, oldest first.

    No act follows one whose events are not sent (`publish` sends them before), so the look ends at
    the first that is, and at the first act without events.
    """
    accepted = pointer.accepted_rows(context.versions.history(product))
    found: list[TopicAct] = []
    for place, row in enumerate(accepted):
        act = _act(context, row, accepted[place:])
        if act is None or _is_sent(context, act):
            break
        found.append(act)
    return tuple(reversed(found))


def _act(context: Context, row: Publication, rows: tuple[Publication, ...]) -> TopicAct | None:
    """Return what is to be sent of an accepted row; of a rollback its reverse events are."""
    published = (one for one in rows if one.action == "publish" and one.table == row.table)
    made = row if row.action == "publish" else next(published, None)
    if made is None or made.run_id is None or row.action == "baseline":
        return None
    try:
        plan = context.runs.plan(made.run_id)
    except Tampered:
        # Of a run that wrote no events, a damaged plan must not block the repair.
        if _is_of_rows(context, row):
            return None
        raise
    topic = _topic(plan)
    return None if topic is None else TopicAct(row, plan, topic)


def _is_of_rows(context: Context, row: Publication) -> bool:
    """Return whether an act changed the product's own table or pointer, and so wrote no events."""
    try:
        contract = context.contract(row.product)
    except BackfillError:
        return False
    return contract.publication == "pinned" or row.table == contract.table


def _topic(plan: Plan) -> CorrectionTopic | None:
    """Return the topic of a run's events; a rehearsal has none."""
    resolved = plan.resolved
    if resolved.manifest.target.publish_mode != "correction_events" or resolved.rehearses:
        return None
    return corrections.correction_sink(resolved.manifest, resolved.contract).topic


def _documents(context: Context, act: TopicAct) -> Iterator[dict[str, Any]]:
    for document in context.evidence.all_of(act.plan.run_id, TOPIC_LEDGER):
        if document["token"] == act.row.token:
            yield document


def _is_sent(context: Context, act: TopicAct) -> bool:
    return any(document["is_sent"] for document in _documents(context, act))


def _send(context: Context, act: TopicAct) -> int:
    plan, row = act.plan, act.row
    state = f"version {row.version} of {plan.product} is accepted, and its events are in "
    state += f"{row.table}; {act.topic.name} may lack some of them"
    roles.require_switched_on(context.profile, "live_topic", plan.product, state)
    try:
        since = _begin(context, act)
        request = TopicRequest(
            topic=act.topic,
            producer=f"lakehouse-backfill.{plan.product}.{act.topic.name}",
            token=row.token,
            headers=_headers(plan),
            since=since,
        )
        events = context.corrections.events_of(row.table, row.token)
        done = context.correction_topics.send(request, events)
    except BackfillError as error:
        error.state = state
        if error.retry_may_help:
            error.fix = "give later: lakehouse-backfill recover"
        else:
            error.fix += f"; to never send them: {give_up_command(plan.run_id)}"
        raise
    _record(context, act, since, is_sent=True)
    context.journal.bind(**plan.labels).log(
        "events sent", version=row.version, topic=act.topic.name,
        sent=done.sent, found=done.found,
    )  # fmt: skip
    return done.sent


def _begin(context: Context, act: TopicAct) -> TopicState:
    """Return where the topic ended before any record of the act; recorded before the first one.

    The ends are asked for before the record of an earlier sending is looked for: who finds none
    asked before anybody sent, so that each recorded end lies before all records of the act.
    """
    now = context.correction_topics.state(act.topic)
    kept = (one["since"] for one in _documents(context, act))
    begun = [TopicState.model_validate(one) for one in kept if one is not None]
    if begun:
        return reduce(_earlier, begun)
    _record(context, act, now, is_sent=False)
    return now


def _earlier(one: TopicState, other: TopicState) -> TopicState:
    common = one.ends.keys() & other.ends.keys()
    ends = {number: min(one.ends[number], other.ends[number]) for number in common}
    return one.model_copy(update={"ends": ends})


def _record(
    context: Context, act: TopicAct, since: TopicState | None, *, is_sent: bool, **more: str
) -> None:
    document = {
        "token": act.row.token,
        "topic": act.topic.name,
        "since": None if since is None else since.model_dump(mode="json"),
        "is_sent": is_sent,
        **more,
    }
    run_id = act.plan.run_id
    context.evidence.record(run_id, TOPIC_LEDGER, document, context.runs.status(run_id).epoch)


def _headers(plan: Plan) -> dict[str, str]:
    """Return what each record says of the run whose act it belongs to."""
    manifest = plan.resolved.manifest
    inputs = [f"{pin.name}={pin.snapshot_id}" for pin in plan.resolved.sources]
    return {
        "x-run-id": plan.run_id,
        "x-processing-mode": manifest.run.mode,
        "x-transform-version": manifest.transform.version,
        "x-input-snapshot": ",".join(inputs),
    }
