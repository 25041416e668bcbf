"""PyIceberg's REST catalog with what it lacks: idempotency keys, and answers told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import TOKEN, WAREHOUSE_LOCATION
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableRequest, TableIdentifier
from requests import HTTPError, RequestException

from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock
from lakehouse_backfill.adapters.iceberg.rest.answers import (
    ChangeRefusedError,
    CommitPutOffError,
    ResentCommitFailedError,
    response_of,
)
from lakehouse_backfill.adapters.iceberg.rest.request_sender import (
    Idempotency,
    RequestSender,
    SecretFilter,
    WaitLimit,
    was_put_off,
    was_sent_again,
)
from lakehouse_backfill.adapters.iceberg.rest.vended_files import (
    RenewedFiles,
    handed_out,
    plain_files,
)
from lakehouse_backfill.domain.profile import REST_TIMEOUTS_MS, timeout_s

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import TableResponse
    from pyiceberg.catalog.rest.auth import AuthManager
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from requests import Response, Session
    from requests.adapters import BaseAdapter

    from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import TableChange

#: Types of errors by which servers say that another commit was first.
_LOST_RACE_TYPES = ("CommitFailedException", "CommitConflictException")


class ResendingRestCatalog(RestCatalog):
    """A REST catalog that sends changes again where that is safe."""

    def __init__(self, name: str, **properties: str) -> None:
        """Connect to the server; its answer to `/v1/config` says whether it knows keys."""
        self.idempotency = Idempotency()
        self.reference_clock = ReferenceClock(self._ask_time)
        super().__init__(name, **properties)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit to a table.

        Raises, beside PyIceberg's errors, ResentCommitFailedError, CommitPutOffError and
        ChangeRefusedError.
        """
        sender = self._with_own_headers() if TOKEN in table.config else self
        with self._answers_told_apart((table,)):
            answer: CommitTableResponse = RestCatalog.commit_table(
                sender, table, requirements, updates
            )
            return answer

    def commit_tables(self, changes: Sequence[TableChange]) -> None:
        """Commit to several tables by one request; raises what `commit_table` does."""
        with self._answers_told_apart(tuple(change.table for change in changes)):
            try:
                self._commit_tables(changes)
            except (AuthorizationExpiredError, UnauthorizedError):
                self._refresh_token()
                self._commit_tables(changes)

    def _commit_tables(self, changes: Sequence[TableChange]) -> None:
        requests = [
            CommitTableRequest(
                identifier=TableIdentifier(namespace=namespace, name=name),
                requirements=change.requirements,
                updates=change.updates,
            ).model_dump_json()
            for change in changes
            for *namespace, name in (change.table.name(),)
        ]
        body = f'{{"table-changes": [{", ".join(requests)}]}}'
        response = self._session.post(self.url("transactions/commit"), data=body.encode())
        try:
            response.raise_for_status()
        except HTTPError as error:
            unknown = dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            # A server that does not know the request has taken nothing.
            refused = dict.fromkeys((404, 405, 406, 410, 415, 422, 501), BadRequestError)
            known = {409: CommitFailedException, **unknown, **refused}
            _handle_non_200_response(error, known)

    @contextmanager
    def _answers_told_apart(self, tables: tuple[Table, ...]) -> Iterator[None]:
        """Tell apart the refusals of a commit to the tables that PyIceberg does not."""
        try:
            yield
        except CommitFailedException as error:
            response = response_of(error)
            if was_sent_again(response):
                raise ResentCommitFailedError(str(error)) from error.__cause__
            if not _names_lost_race(response) and all(map(self._is_unchanged, tables)):
                raise ChangeRefusedError(str(error)) from error.__cause__
            raise
        except (ServiceUnavailableError, TooManyRequestsError) as error:
            if was_put_off(response_of(error)):
                raise CommitPutOffError(str(error)) from error.__cause__
            raise

    def unregister_table(self, identifier: str | tuple[str, ...]) -> None:
        """Take the table out of the catalog; its files stay. Raises NoSuchTableError.

        As PyIceberg does for its own requests, a token that ran out is renewed once.
        """
        try:
            self._unregister(identifier)
        except (AuthorizationExpiredError, UnauthorizedError):
            self._refresh_token()
            self._unregister(identifier)

    def _unregister(self, identifier: str | tuple[str, ...]) -> None:
        path = self._split_identifier_for_path(identifier)
        endpoint = f"{Endpoints.load_table}/unregister"
        response = self._session.post(self.url(endpoint, prefixed=True, **path))
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})

    def _response_to_table(self, identifier: tuple[str, ...], answer: TableResponse) -> Table:
        """Let credentials that end be renewed while the table is in use."""
        table = super()._response_to_table(identifier, answer)
        if handed_out(table.io.properties, self.properties):
            load = super().load_table
            table.io = RenewedFiles(table.io, lambda: plain_files(load(identifier).io))
        return table

    def _with_own_headers(self) -> RestCatalog:
        """Return this catalog with headers that no other thread sends, on the same connections.

        PyIceberg 0.12 writes the token of one table into the headers of its session.
        """
        own = copy(self)
        own._session = copy(self._session)
        own._session.headers = self._session.headers.copy()
        return own

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        """Log in; from here on no answer tells what was sent to prove who asks."""
        for scheme in ("http://", "https://"):
            session.mount(scheme, SecretFilter(self._limited(session.get_adapter(scheme))))
        return super()._create_legacy_oauth2_auth_manager(session)

    def _create_session(self) -> Session:
        session = super()._create_session()
        through = self._limited(session.get_adapter(self.uri))
        sender = RequestSender(through, self.idempotency, reference=self.reference_clock)
        session.mount(self.uri, sender)
        return session

    def _limited(self, through: BaseAdapter) -> WaitLimit:
        limits = (timeout_s(self.properties, *limit) for limit in REST_TIMEOUTS_MS.items())
        return WaitLimit(through, tuple(limits))

    def _ask_time(self, _: ReferenceClock) -> None:
        """Send a request that is cheap; the sender notes the time of its answer, whatever it is.

        A server that does not answer takes no commit either, which says so itself.
        """
        place = {
            key: self.properties[key] for key in (WAREHOUSE_LOCATION,) if key in self.properties
        }
        with suppress(RequestException):
            self._session.get(self.url(Endpoints.get_config, prefixed=False), params=place)

    def _is_unchanged(self, table: Table) -> bool:
        """Return whether the table is still the one that was loaded: nobody else committed."""
        try:
            current = super().load_table(table.name())
        except Exception:  # noqa: BLE001 (then it is taken for a lost race, which looks again)
            return False
        return bool(current.metadata_location == table.metadata_location)


def _names_lost_race(response: Response | None) -> bool:
    """Return whether the answer says so, or says nothing that could be read."""
    try:
        answer: Any = json.loads(response.text) if response is not None else {}
        return answer["error"]["type"] in _LOST_RACE_TYPES
    except (ValueError, KeyError, TypeError):
        return True
