"""Conditional commits: a property of the table holds the state that its newest commit made.

Each state has a token, and names the token that it follows. So a commit lands once: one of unknown
outcome is found by its token, and one that was decided on an older state is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import Conflict, OutcomeUnknown, TooBusy, WrongClock


class LinkedState(Protocol):
    """A state that names its commit, and the commit whose state it was decided on."""

    @property
    def token(self) -> str: ...

    @property
    def follows(self) -> str: ...


StateT = TypeVar("StateT", bound=LinkedState)


@dataclass(frozen=True)
class ConditionalCommits(Generic[StateT]):
    """Commits to tables of one kind, whose state is in a property of the table."""

    catalog: Catalog
    #: The property, and what reads its text.
    name: str
    parse: Callable[[str], StateT]
    #: Opens the `commit_window` of the table's kind, so that its fault points have its name.
    commit_window: Callable[[], AbstractContextManager[None]]
    #: Says what another process did: of a table's name, its state if it has one, and ours.
    overtaken: Callable[[str, StateT | None, StateT], str]
    #: What an error says about the data.
    kept: str
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def read(self, table: Table) -> StateT | None:
        """Return the state of the newest commit; None where there was none."""
        text = table.properties.get(self.name)
        return None if text is None else self.parse(text)

    def is_at(self, table: Table, state: StateT) -> bool:
        """Return whether the commit of this state is the newest one."""
        found = self.read(table)
        return found is not None and found.token == state.token

    def commit(self, table: str, state: StateT, prepare: Callable[[Table], Transaction]) -> None:
        """Commit what `prepare` makes together with the state, exactly once.

        `prepare` runs again after each lost race, on the newest table. Raises Conflict when the
        table has another state than the one that `state` follows, TooBusy, OutcomeUnknown.
        """

        def with_state(loaded: Table) -> Transaction:
            made = prepare(loaded)
            made.set_properties({self.name: canonical_json(state)})
            return made

        self.commit_without_state(table, state, with_state, lambda one: self.is_at(one, state))

    def commit_without_state(
        self,
        table: str,
        state: StateT,
        prepare: Callable[[Table], Transaction],
        is_done: Callable[[Table], bool],
    ) -> None:
        """Commit what must be there before the commit of `state`, unless the table has it."""
        for _ in catalogs.retry_attempts(self.budget_s):
            loaded = catalogs.load_table(self.catalog, table)
            if is_done(loaded):
                return
            self._require_unchanged(table, loaded, state)
            # PyIceberg's own retry would append a second time without a look at the state.
            loaded.metadata.properties["commit.retry.num-retries"] = "0"
            with catalogs.translate_errors():
                transaction = prepare(loaded)
            try:
                with self.commit_window():
                    transaction.commit_transaction()
            except WrongClock:
                raise  # Before anything was sent.
            except Exception as error:  # noqa: BLE001 (after any error it may have succeeded)
                if catalogs.is_lost_race(error):
                    continue
                self._require_done(table, is_done, error)
            return
        raise TooBusy(
            f"other writers of {table} kept winning for {self.budget_s:.0f} s",
            state=self.kept,
            fix="give the command again, or pause the other writer",
        )

    def _require_unchanged(self, name: str, table: Table, state: StateT) -> None:
        """Raise Conflict unless the table has the state that this commit was decided on."""
        found = self.read(table)
        if (found.token if found else "") == state.follows:
            return
        raise Conflict(
            self.overtaken(name, found, state),
            state=self.kept,
            fix="wait for the other process, then give the command again",
        )

    def _require_done(self, name: str, is_done: Callable[[Table], bool], cause: Exception) -> None:
        """Raise OutcomeUnknown unless the table shows that the commit succeeded."""
        try:
            is_there = is_done(catalogs.load_table(self.catalog, name))
        except Exception:  # noqa: BLE001 (the catalog may be down for longer)
            is_there = False
        if not is_there:
            raise OutcomeUnknown(
                f"a commit to {name} may or may not have landed: {type(cause).__name__}: "
                f"{catalogs.first_error_line(cause)}",
                state="either all of this commit is there, or nothing; no file was deleted",
                fix="give the same command again: it looks at the table first",
            ) from cause
