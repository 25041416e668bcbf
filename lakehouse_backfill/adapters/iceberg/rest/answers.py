"""Answers of REST catalogs and of stores that errors do not tell apart, and what they mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    OAuthError,
    ServiceUnavailableError,
    UnauthorizedError,
)

from lakehouse_backfill.errors import (
    LOGIN_FIX,
    LOST_RACE,
    REFUSAL_FIX,
    RIGHTS_FIX,
    BackfillError,
    CatalogDown,
    TooBusy,
    Unsupported,
    WrongClock,
)

if TYPE_CHECKING:
    from requests import Response

#: Statuses that a retry would get again.
_UNSUPPORTED_STATUSES = (400, 404, 405, 406, 410, 415, 422, 501)
_LOGIN_ERRORS = (AuthorizationExpiredError, OAuthError, UnauthorizedError)

#: How libraries tell that a store refused: codes of AWS and Azure, and HTTP's status.
_DENIED = re.compile(
    r"access[ _]?denied|forbidden|permission[ _]denied|AuthorizationPermissionMismatch"
    r"|(HTTP|status|code)[ :=(]{1,3}403\b|\b403 Client Error",
    re.IGNORECASE,
)
_PLACE = re.compile(r"\S*/\S*")


class ResentCommitFailedError(CommitFailedException):
    """Another commit was first, and it may be an earlier sending of the same one."""


class CommitPutOffError(ServiceUnavailableError):
    """The server said to every sending that it did not take the commit."""


class ChangeRefusedError(BadRequestError):
    """The server answered 409 to a change that it does not allow, and nobody else committed."""


def is_unsupported_by_server(error: BaseException) -> bool:
    """Return whether the server does not support the request, or not in this form."""
    if isinstance(error, NotImplementedError | ChangeRefusedError):
        # PyIceberg also raises the first for an endpoint that the server does not advertise.
        return True
    return getattr(response_of(error), "status_code", None) in _UNSUPPORTED_STATUSES


def is_denied(error: BaseException) -> bool:
    """Return whether a store answered that the credentials do not reach so far.

    Places of files are left out: their random names may hold a 403, and others any word.
    """
    if not isinstance(error, OSError):
        return False
    return isinstance(error, PermissionError) or bool(_DENIED.search(_PLACE.sub("", str(error))))


def refusal_error(error: Exception) -> BackfillError | None:
    """Build the error for a server that answered, and refuses; None for any other answer."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, _LOGIN_ERRORS):
        return CatalogDown(
            f"the catalog does not accept this account's credentials: {text}",
            fix=LOGIN_FIX,
        )
    if isinstance(error, ForbiddenError):
        return Unsupported(
            f"the catalog forbids this to the account, or to all accounts: {text}",
            fix=RIGHTS_FIX,
        )
    if isinstance(error, BadRequestError) and LOST_RACE in text:
        return TooBusy(f"another writer won: {text}", fix="try again")
    if isinstance(error, BadRequestError):
        return Unsupported(
            f"the catalog refuses the request: {text}",
            fix=REFUSAL_FIX,
        )
    return None


def commit_refusal(error: Exception | None, table: str, state: str) -> BackfillError | None:
    """Build the error for a commit that the server certainly did not take; None for any other.

    `state` is what holds then. A server that asks to wait, or refuses, after an earlier sending
    was not answered, proves nothing.
    """
    if isinstance(error, WrongClock):
        return type(error)(error.problem, state=state, fix=error.fix)
    if isinstance(error, CommitPutOffError):
        return CatalogDown(
            f"the catalog takes no commit on {table} now: {error}",
            state=state,
            fix="repeat the same command later: it looks at the table first",
        )
    refusal = refusal_error(error) if error and is_certain_refusal(error) else None
    return refusal and type(refusal)(refusal.problem, state=state, fix=refusal.fix)


def is_certain_refusal(error: Exception) -> bool:
    """Return whether the server refuses the request, and has refused each sending of it."""
    is_sent_once = not _was_sent_again(response_of(error))
    is_refusal = isinstance(error, (BadRequestError, ForbiddenError, *_LOGIN_ERRORS))
    return is_refusal and is_sent_once and LOST_RACE not in str(error)


def _was_sent_again(response: Response | None) -> bool:
    if response is None:
        return False
    # It loads requests, which only a REST catalog needs.
    from lakehouse_backfill.adapters.iceberg.rest.request_sender import was_sent_again

    return was_sent_again(response)


def response_of(error: BaseException) -> Response | None:
    """Return the answer that PyIceberg made the error of."""
    return getattr(error.__cause__, "response", None)
