"""Commands on event stores."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakehouse_backfill.cli.session import DryRunOption, current_project
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.results.base import Result

_Store = Annotated[str, typer.Argument(metavar="STORE", help="An event store of catalog/events.")]


def replay(
    store: _Store,
    handler: Annotated[
        str | None, typer.Option(metavar="NAME", help="A handler of the event store.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="A topic of the event store, instead.")
    ] = None,
    aggregate: Annotated[
        str | None, typer.Option(metavar="ID", help="Events of this aggregate only.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help="First date or instant at which they occurred."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="T", help="First one that is left out again.")
    ] = None,
    event_type: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="Events of this type; may be repeated.")
    ] = None,
    *,
    dry_run: DryRunOption = False,
) -> Result:
    """Let a handler process the events of a store, each once, in order.

    The newest snapshot is pinned. Effects and ledger are committed together; messages are listed
    and not sent. A replay that was cut off is continued by the same command. With --dry-run code
    and events are checked only: duplicates, clashes, gaps, versions, what is left to handle.
    With --topic the events go to a topic of their own, where the profile has live_topic on.

    Examples:
      lakehouse-backfill replay orders --dry-run
      lakehouse-backfill replay orders --handler balances
      lakehouse-backfill replay orders --handler balances --aggregate A-17
      lakehouse-backfill replay orders --handler balances --from 2026-01-01 --to 2026-02-01
      lakehouse-backfill replay orders --topic again
    """
    project, types = current_project(), tuple(event_type or ())
    selected: dict[str, Any] = {"aggregate": aggregate, "from_": from_, "to": to}
    if topic is None:
        act = project.check_events if dry_run else project.replay
        return act(store, handler, **selected, event_types=types)
    if handler is not None:
        raise ConfigError(
            "--handler and --topic exclude each other",
            fix="give the command twice, once with each",
        )
    send = project.check_topic if dry_run else project.replay_into_topic
    return send(store, topic, **selected, event_types=types)


def rebuild(
    store: _Store,
    handler: Annotated[str, typer.Option(metavar="NAME", help="A handler of the event store.")],
    aggregate: Annotated[str, typer.Option(metavar="ID", help="The aggregate.")],
    good_before: Annotated[
        str | None,
        typer.Option(metavar="T", help="Begin at a state of events before this date or instant."),
    ] = None,
) -> Result:
    """Compute the state of one aggregate from its events.

    It begins at the newest state that was kept, if that was made of all events up to it. Only
    files that may hold the events after it are opened. Nothing is written.

    Examples:
      lakehouse-backfill rebuild orders --handler balances --aggregate A-17
      lakehouse-backfill rebuild orders --handler balances --aggregate A-17 --good-before 2026-01-03
    """
    return current_project().rebuild(store, handler, aggregate, good_before)
