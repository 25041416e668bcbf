"""Pages of an API: the first request, the one after a response, and where a later landing begins.

A request is a small JSON value, its *place*: {"cursor": …}, {"from": …, "to": …, "end": …} or
{"after": …}. Places are stored with the responses, so a landing that was cut off goes on from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

from lakehouse_backfill.domain.sources.declaration import (
    ApiSource,
    CursorPaging,
    IdRangePaging,
    WindowPaging,
)
from lakehouse_backfill.domain.sources.landings import LandingRequest
from lakehouse_backfill.errors import Blocked, ConfigError

Place = dict[str, Any]
_NOTHING = "nothing was landed"


def first_place(
    api: ApiSource, request: LandingRequest, continued: Mapping[str, Any], now: datetime
) -> Place | None:
    """Return the place of the first request; None when there is nothing to ask for.

    Raises ConfigError for a range that the source cannot have, Blocked for one that the vendor does
    not keep any more.
    """
    paging = api.paging
    if isinstance(paging, WindowPaging):
        return _first_window(api, paging, request, continued, now)
    if request.from_ is not None or request.to is not None:
        raise ConfigError(
            "--from and --to are for APIs with paging by window",
            fix="leave them out: everything that is new is landed",
        )
    if isinstance(paging, IdRangePaging):
        is_new = request.reconcile or "after" not in continued
        return {"after": paging.first if is_new else continued["after"]}
    if isinstance(paging, CursorPaging) and paging.continues and not request.reconcile:
        return {"cursor": continued.get("cursor")}
    return {"cursor": None}


def query(api: ApiSource, place: Place) -> dict[str, str]:
    """Return the query parameters of a request."""
    paging, found = api.paging, dict(api.parameters)
    if isinstance(paging, WindowPaging):
        found |= {paging.from_: place["from"], paging.to: place["to"]}
        if paging.cursor and place.get("cursor") is not None:
            found[paging.cursor] = str(place["cursor"])
    elif isinstance(paging, IdRangePaging):
        found[paging.parameter] = str(place["after"])
    elif isinstance(paging, CursorPaging) and place.get("cursor") is not None:
        found[paging.parameter] = str(place["cursor"])
    return found


def next_place(api: ApiSource, place: Place, body: Any, records: Sequence[Any]) -> Place | None:
    """Return the place of the request after a response; None when it was the last one.

    Raises Blocked for a response that names its own request as the next one: it would never end.
    """
    paging = api.paging
    if isinstance(paging, IdRangePaging):
        _require_order([one.get(api.id) for one in records])
        after = records[-1].get(api.id) if records else None
        return None if after is None else _moved(place, {"after": after})
    if isinstance(paging, CursorPaging):
        cursor = value_at(body, paging.next)
        is_last = _is_end(cursor) or (paging.continues and not records)
        return None if is_last else _moved(place, {"cursor": cursor})
    if isinstance(paging, WindowPaging):
        cursor = value_at(body, paging.next) if paging.next else None
        if not _is_end(cursor):
            return _moved(place, {**place, "cursor": cursor})
        if place["to"] < place["end"]:
            return _window(paging, place["to"], place["end"])
    return None


def continued_from(api: ApiSource, place: Place, body: Any) -> dict[str, Any]:
    """Return where a later landing begins, after the last response of this one."""
    paging = api.paging
    if isinstance(paging, WindowPaging):
        return {"from": place["end"]}
    if isinstance(paging, IdRangePaging):
        return {"after": place["after"]}
    if isinstance(paging, CursorPaging) and paging.continues:
        cursor = value_at(body, paging.next)
        return {"cursor": place.get("cursor") if _is_end(cursor) else cursor}
    return {}


def without_gap(
    api: ApiSource,
    landed: tuple[Place, dict[str, Any]],
    before: Mapping[str, Any],
    began_at: datetime,
) -> dict[str, Any]:
    """Return where a later landing begins, so that it leaves out no window.

    `landed`: the first place of this landing, and where it ended; `before`: where the one before it
    ended. A range that lies behind a gap, or before it, moves nothing, unless the vendor does not
    keep the gap any more; what lies in the future is read again.
    """
    first, end = landed
    if not isinstance(api.paging, WindowPaging):
        return end
    reached, known = min(end["from"], _text(began_at)), before.get("from")
    if known is None:
        return {"from": reached}
    is_lost = api.retention_days is not None and _instant(known) < began_at - timedelta(
        days=api.retention_days
    )
    is_joined = first["from"] <= known or is_lost
    return {"from": max(reached, known) if is_joined else known}


def records_of(api: ApiSource, body: Any) -> list[Any]:
    """Return the records of a response; raises Blocked when it has no list of objects there."""
    found = value_at(body, api.records) if api.records else body
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        where = api.records or "the response"
        raise Blocked(
            f"{where} is no list of records",
            state="the response is stored; no record of it was landed",
            fix="mend `api.records` in the declaration, then give the command again",
        )
    return found


def value_at(body: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        if not isinstance(body, dict):
            return None
        body = body.get(name)
    return body


def repeated_page(place: Place) -> Blocked:
    """Build the error for a page that is named again: the pages would never end."""
    return Blocked(
        f"the API names the same page again: {place}",
        state="what was landed before it stays",
        fix="mend `api.paging` in the declaration, or tell the vendor",
    )


def _moved(place: Place, following: Place) -> Place:
    if following == place:
        raise repeated_page(following)
    return following


def _is_end(cursor: Any) -> bool:
    return cursor is None or cursor is False or cursor == ""


def _require_order(ids: Sequence[Any]) -> None:
    """Raise Blocked for numbers in another order: the last one would leave records out."""
    if all(isinstance(one, int) for one in ids) and list(ids) != sorted(ids):
        raise Blocked(
            "the records of a response are not in the order of their ids",
            state="the response is stored; no record of it was landed",
            fix="ask for the order in `api.parameters`, or use another `api.paging`",
        )


def _first_window(
    api: ApiSource,
    paging: WindowPaging,
    request: LandingRequest,
    continued: Mapping[str, Any],
    now: datetime,
) -> Place | None:
    if request.reconcile and (request.from_ is None or request.to is None):
        raise ConfigError(
            "--reconcile of an API with windows needs a whole range",
            fix="add --from 2026-01-01 --to 2026-02-01",
        )
    start = request.from_ if request.from_ is not None else continued.get("from")
    if start is None:
        raise ConfigError(
            "the first landing of an API with windows needs its first instant",
            fix="add --from 2026-01-01",
        )
    first, end = _instant(start), _instant(now)
    if request.to is not None:
        # Windows have whole seconds; a part of one is read whole.
        end = _instant(request.to)
        end += timedelta(seconds=1 if end.microsecond else 0)
    if api.retention_days is not None:
        kept = now - timedelta(days=api.retention_days)
        if first < kept:
            raise Blocked(
                f"the vendor keeps {api.retention_days} days: records before "
                f"{kept:%Y-%m-%dT%H:%MZ} are gone, and {first:%Y-%m-%dT%H:%MZ} was asked for",
                state=_NOTHING,
                fix=f"give --from {kept + timedelta(days=1):%Y-%m-%d} or later",
            )
    return None if first >= end else _window(paging, _text(first), _text(end))


def _window(paging: WindowPaging, start: str, end: str) -> Place:
    stop = min(_instant(start) + timedelta(hours=paging.hours), _instant(end))
    return {"from": start, "to": _text(stop), "end": end}


def _instant(value: Any) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), timezone.utc)
    return value.astimezone(timezone.utc)  # type: ignore[no-any-return]


def _text(moment: datetime) -> str:
    """Return an instant as text; texts of one form sort like their instants."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
