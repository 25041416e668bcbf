"""Correction events: their columns, the events of a differing row, and what is refused (U9).

Values are JSON texts in one canonical encoding, so that the same row always gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.steps import visible_partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.outside import CorrectionSink
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
)
from lakehouse_backfill.domain.serialization import canonical_json, digest
from lakehouse_backfill.domain.sources.topics import CorrectionTopic, TopicState
from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, Unsupported

CorrectionEventType = Literal["correction", "retraction", "addition"]
_FIELD = "target.corrections"

#: The table's columns: name, Iceberg type (`!`: required), meaning. docs/corrections.md lists them.
CORRECTION_COLUMNS = (
    ("event_id", "string!", "Names the event: the same key of the same publication, the same id."),
    ("event_type", "string!", "`correction`, `retraction` or `addition`."),
    ("product", "string!", "The product whose row is corrected."),
    ("partition", "string", "Label of the row's partition."),
    ("key", "string!", "JSON of the key columns; of the whole row if the product has no key."),
    ("old", "string", "JSON of the row until now; null for one that was not there."),
    ("new", "string", "JSON of the row from now on; null for one that goes away."),
    ("corrects_event_id", "string", "The event that this one replaces or takes back."),
    ("reason_code", "string!", "Why, as the run manifest says; `rollback` for what takes back."),
    ("produced_by_run_id", "string!", "The run that found the difference, or was rolled back."),
    ("output_version", "long", "The version that the events belong to."),
    ("publication", "string!", "Token of the act that wrote the event."),
    ("position", "long!", "Order of the events of one act, from 0."),
    ("produced_at", "timestamptz!", "When the act began."),
)


def correction_sink(manifest: RunManifest, contract: Contract) -> CorrectionSink:
    """Return the destination of the events: the manifest's, else the contract's.

    Raises ConfigError when neither declares one.
    """
    sink = manifest.target.corrections or contract.corrections
    if sink is None:
        raise ConfigError(
            f"{_FIELD}: publish_mode correction_events needs a table for the events",
            fix=f"write target.corrections: {{table: {contract.table}_corrections}}, or the same "
            f"as corrections in the contract of {contract.product}",
            field=_FIELD,
        )
    return sink


def check_corrections(
    context: Context, manifest: RunManifest, contract: Contract
) -> tuple[tuple[str, ...], int]:
    """Return notes on what the run will write instead of the table; none in other modes.

    The number is that of the partitions of the topic that gets the events; 0 without one.

    Raises ConfigError, Unsupported, Blocked (a topic that must not be written to), SourceDown.
    """
    declared = manifest.target.corrections
    if manifest.target.publish_mode != "correction_events":
        if declared is not None:
            raise ConfigError(
                f"{_FIELD} is only for publish_mode correction_events",
                fix="remove it, or write publish_mode: correction_events",
                field=_FIELD,
            )
        return (), 0
    sink = correction_sink(manifest, contract)
    if sink.table == contract.table:
        raise ConfigError(
            f"{_FIELD}.table is the product's own table",
            fix=f"name another one, e.g. {contract.table}_corrections",
            field=f"{_FIELD}.table",
        )
    notes = [f"{contract.table} stays as it is: the differences become events in {sink.table}"]
    partitions = 0
    if sink.topic is not None:
        found = check_topic(context, manifest, contract, sink.topic, NOTHING_PLANNED)
        partitions = len(found.ends)
        notes.append(_topic_note(sink.topic, found))
    if contract.after_publish is not None:
        notes.append("after_publish checks nothing: readers of the table see no other rows")
    return tuple(notes), partitions


def check_topic(
    context: Context,
    manifest: RunManifest,
    contract: Contract,
    topic: CorrectionTopic,
    state: str,
) -> TopicState:
    """Look at the topic that gets the events, and return it.

    Raises Blocked when the profile does not switch topics on, or the topic has records of others
    and is not declared as shared; Unsupported where rows have restricted columns, or events that
    are in force went to another topic; SourceDown. Nothing is sent.
    """
    field = f"{_FIELD}.topic"
    roles.require_switched_on(context.profile, "live_topic", contract.product, state)
    if contract.restricted_columns:
        raise Unsupported(
            f"{field}: events hold whole rows, and {', '.join(contract.restricted_columns)} of "
            f"{contract.product} are restricted: their values would leave the lake",
            state=state,
            fix=f"remove {field}; consumers that may read them read the table of events",
            field=field,
        )
    _require_same_topic(context, manifest, contract, topic, state)
    try:
        found = context.correction_topics.look(topic)
    except BackfillError as error:
        error.state = state
        raise
    if found.foreign and not topic.shared:
        raise Blocked(
            f"{field}: {topic.name} has records that are no correction events, such as "
            f"{', '.join(found.foreign[:3])}: it is a live topic",
            state=state,
            fix="name a topic that only holds corrections; or write shared: true, once all its "
            "consumers know the records with the header x-run-id",
            field=field,
        )
    return found


def _topic_note(topic: CorrectionTopic, found: TopicState) -> str:
    note = f"once they are accepted, the events are sent to the topic {topic.name}, too; "
    if found.foreign:
        return f"{note}it has records of others, and is declared as shared"
    if not found.looked_at:
        return f"{note}no record was found in it"
    return f"{note}the {found.looked_at} records that were looked at in it are such events"


def _require_same_topic(
    context: Context, manifest: RunManifest, contract: Contract, topic: CorrectionTopic, state: str
) -> None:
    """Raise Unsupported when events in force went to another topic, or to none.

    A rollback takes several publications back by one act, whose events go to one topic.
    """
    table = correction_sink(manifest, contract).table
    history = context.versions.history(contract.product)
    rows = [row for row in history if (row.action, row.table) == ("publish", table)]
    for run_id in dict.fromkeys(row.run_id for row in rows if row.run_id):
        if not visible_partitions(history, run_id):
            continue
        made = context.runs.plan(run_id).resolved
        other = correction_sink(made.manifest, made.contract).topic
        if other is None or other.name != topic.name:
            where = "to no topic" if other is None else f"to the topic {other.name}"
            raise Unsupported(
                f"{_FIELD}.topic: events of {run_id} are in force, and went {where}",
                state=state,
                fix=f"take them back first: lakehouse-backfill rollback {contract.product} "
                "--reason TEXT; or write the events to a table of their own",
                field=f"{_FIELD}.topic",
            )


def published_corrections(
    plan: Plan, history: tuple[Publication, ...]
) -> Iterator[tuple[Publication, str]]:
    """Yield the publications of other runs that correct partitions of this run by events.

    These are publications outside the product's table. Each comes with the first such partition.
    """
    own = plan.resolved.contract.table
    others = {
        row.run_id: row
        for row in history
        if row.action == "publish" and row.table != own and row.run_id not in (None, plan.run_id)
    }
    for run_id, row in others.items():
        labels = set(plan.resolved.scope.partitions) & visible_partitions(history, str(run_id))
        if labels:
            yield row, min(labels)


def published_corrections_error(plan: Plan, row: Publication, label: str) -> Unsupported:
    """Build the error for rows that events of another run correct already."""
    return Unsupported(
        f"{plan.product}: correction events of {row.run_id} (version {row.version}) stand for "
        f"{label}, which {plan.run_id} changes too",
        state="nothing was published; the shadow table is kept",
        fix=f"take them back first: lakehouse-backfill rollback {plan.product} --reason "
        "TEXT, then publish again",
    )


def correction_events(
    request: CorrectionEventsRequest, rows: Iterable[DifferingRow]
) -> Iterator[dict[str, Any]]:
    """Yield the events of differing rows, in the order of the rows.

    Equal rows must be adjacent: their number in the group makes their event ids differ.
    """
    publication = request.publication
    position, number, last = 0, 0, None
    for row in rows:
        number = number + 1 if row == last else 0
        last, retracted = row, None
        for kind, old, new in _event_kinds(request.sink.as_, row):
            texts = (_json_text(row.key), _json_text(old), _json_text(new))
            event_id = digest(
                [publication.run_id, publication.version, row.partition, kind, texts, number]
            )
            yield {
                "event_id": event_id,
                "event_type": kind,
                "product": publication.product,
                "partition": row.partition,
                **dict(zip(("key", "old", "new"), texts, strict=True)),
                "corrects_event_id": retracted,
                "reason_code": request.reason_code,
                "produced_by_run_id": publication.run_id,
                "output_version": publication.version,
                "publication": publication.token,
                "position": position,
                "produced_at": publication.at,
            }
            retracted = event_id if kind == "retraction" else None
            position += 1


def _event_kinds(
    how: str, row: DifferingRow
) -> Iterator[tuple[CorrectionEventType, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    if how == "correction":
        yield "correction", row.old, row.new
        return
    if row.old is not None:
        yield "retraction", row.old, None
    if row.new is not None:
        yield "addition", None, row.new


def _json_text(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else canonical_json(dict(values))


_REVERSE = {"correction": "correction", "retraction": "addition", "addition": "retraction"}


def reversed_events(
    request: CompensationRequest, written: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the reverse of the written events; `written` must list the last event first."""
    for position, event in enumerate(written):
        yield {
            **event,
            "event_id": digest(["reverse", request.publication.token, event["event_id"]]),
            "event_type": _REVERSE[event["event_type"]],
            "old": event["new"],
            "new": event["old"],
            "corrects_event_id": event["event_id"],
            "reason_code": "rollback",
            "produced_by_run_id": request.by_run,
            "output_version": None,
            "publication": request.publication.token,
            "position": position,
            "produced_at": request.publication.at,
        }
