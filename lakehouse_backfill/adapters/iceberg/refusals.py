"""Telling a server that does not do a thing at all from one that does not do it now."""

from __future__ import annotations

#: Asking again would be answered in the same way.
_UNSUPPORTED_STATUSES = (400, 404, 405, 406, 410, 415, 422, 501)


def is_unsupported_by_server(error: BaseException) -> bool:
    """Tell whether the server does not know the request, or does not want it in this form."""
    if isinstance(error, NotImplementedError):
        # Also what PyIceberg raises for an endpoint that the server does not advertise.
        return True
    response = getattr(error.__cause__, "response", None)
    return getattr(response, "status_code", None) in _UNSUPPORTED_STATUSES
