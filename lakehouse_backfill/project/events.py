"""Commands on event stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.results import events


class EventCommands(ProjectBase):
    """`replay`, `rebuild`, and what a replay would meet."""

    def check_events(
        self,
        store: str,
        handler: str | None = None,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.EventCheckResult:
        """Return what the newest events of a store are like, and how many a replay would handle.

        The code of upcasters, and that of a named handler, is loaded too. Nothing is changed.
        Raises NotFound, ConfigError, WriteForbidden, Unsupported (a table without the columns of
        events, schemas that are not compatible).
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.check import missing_links
        from lakehouse_backfill.core.replay.preview import check_events
        from lakehouse_backfill.wiring.event_stores import (
            load_handler,
            load_upcasters,
            replay_ports,
        )

        declared = find_event_store(self.folder, store)
        request = replay_request(aggregate, from_, to, event_types)
        upcasters = load_upcasters(self.wiring, declared)
        loaded = None if handler is None else load_handler(self.wiring, declared, handler)
        found = check_events(replay_ports(self.wiring, declared), declared, request, loaded)
        links = missing_links(upcasters, found.findings)
        return results.events.EventCheckResult.of(declared, found, links)

    def replay(
        self,
        store: str,
        handler: str | None,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.ReplayResult:
        """Let a handler process the selected events that it has not processed, each once, in order.

        A replay that was cut off is continued. Raises NotFound, ConfigError, RejectedInput (events
        that are not consistent), Blocked (events that come too late), Conflict (another process
        replays, or a replay of another selection was cut off), Unsupported.
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.replay import replay
        from lakehouse_backfill.wiring.event_stores import load_handler, replay_ports

        declared = find_event_store(self.folder, store)
        if handler is None:
            raise ConfigError(
                f"nothing says which handler of {store} processes the events",
                fix=f"lakehouse-backfill replay {store} --handler NAME; it has: "
                f"{', '.join(declared.handlers) or 'none'}",
            )
        request = replay_request(aggregate, from_, to, event_types)
        loaded = load_handler(self.wiring, declared, handler)
        done = replay(replay_ports(self.wiring, declared), declared, loaded, request)
        return results.events.ReplayResult.of(declared, handler, done)

    def replay_into_topic(
        self,
        store: str,
        topic: str,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.TopicReplayResult:
        """Send the selected events that a topic of the store lacks, each once, in order.

        A replay that was cut off is continued. Raises NotFound, ConfigError (a topic that is
        landed), RejectedInput (events that are not consistent), Blocked (topics are switched off; a
        live topic; events that come too late), Conflict (another process sends), SourceDown.
        """
        from lakehouse_backfill.config.events.event_stores import (
            find_store_of_topic,
            replay_request,
        )
        from lakehouse_backfill.core.replay.topic import replay_into_topic
        from lakehouse_backfill.wiring.event_stores import topic_replay_ports

        declared = find_store_of_topic(self.folder, store, topic)
        request = replay_request(aggregate, from_, to, event_types)
        done = replay_into_topic(topic_replay_ports(self.wiring), declared, topic, request)
        return results.events.TopicReplayResult.of(declared, topic, done)

    def check_topic(
        self,
        store: str,
        topic: str,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.EventCheckResult:
        """Return what `replay_into_topic` would meet, and how many events it would send.

        The topic is read; nothing is sent. Raises as `replay_into_topic`.
        """
        from lakehouse_backfill.config.events.event_stores import (
            find_store_of_topic,
            replay_request,
        )
        from lakehouse_backfill.core.replay.topic import check_topic
        from lakehouse_backfill.wiring.event_stores import topic_replay_ports

        declared = find_store_of_topic(self.folder, store, topic)
        request = replay_request(aggregate, from_, to, event_types)
        found = check_topic(topic_replay_ports(self.wiring), declared, topic, request)
        return results.events.EventCheckResult.of(declared, found, ())

    def rebuild(
        self, store: str, handler: str, aggregate: str, good_before: str | None = None
    ) -> events.RebuildResult:
        """Compute the state of one aggregate from its newest kept state and the events after it.

        `good_before`, a date or an instant: the newest state that was made of earlier events only,
        as later ones were wrong. Nothing is written. Raises NotFound, ConfigError, RejectedInput.
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.rebuild import rebuild
        from lakehouse_backfill.wiring.event_stores import load_handler, replay_ports

        declared = find_event_store(self.folder, store)
        loaded = load_handler(self.wiring, declared, handler)
        since = replay_request(None, good_before, None, ()).from_
        found = rebuild(replay_ports(self.wiring, declared), declared, loaded, aggregate, since)
        done = results.events.RebuildResult.of(declared, handler, aggregate, found)
        return replace(done, good_before=since)
