"""A conditional commit lands once, on the state that it was decided on, or changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg.landing.conditional_commit import ConditionalCommits
from lakehouse_backfill.domain.serialization import Value
from lakehouse_backfill.errors import BackfillError, Conflict, OutcomeUnknown, TooBusy, WrongClock

NAME = "raw.t"
FIELD = Schema(NestedField(1, "n", LongType()))


class Counted(Value):
    """A state of a table: how many rows its commits have appended."""

    rows: int
    token: str
    follows: str = ""


FIRST, SECOND = Counted(rows=1, token="a"), Counted(rows=2, token="b", follows="a")
FOREIGN = Counted(rows=1, token="x")


class World:
    """A table in a catalog, and a sender that does first what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.catalog = SqlCatalog("l", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
        self.catalog.create_namespace("raw")
        self.catalog.create_table(NAME, FIELD)
        self.sent: list[Callable[[Transaction], None]] = []
        self.tries = 0

    def commits(self, budget_s: float = 5.0) -> ConditionalCommits[Counted]:
        return ConditionalCommits(
            self.catalog,
            "state",
            Counted.model_validate_json,
            self._window,
            lambda table, found, _: f"{table} is at {found.token if found else 'nothing'}",
            "nothing of it is there",
            budget_s,
        )

    def append(self, state: Counted, budget_s: float = 5.0) -> None:
        self.commits(budget_s).commit(NAME, state, one_row)

    def rows(self) -> int:
        return int(self.catalog.load_table(NAME).scan().count())

    def state(self) -> Counted | None:
        return self.commits().read(self.catalog.load_table(NAME))

    @contextmanager
    def _window(self) -> Iterator[None]:
        """Let the transaction that is sent meanwhile do what a test wants."""
        self.tries += 1
        send = self.sent.pop(0) if self.sent else Transaction.commit_transaction
        with pytest.MonkeyPatch.context() as patch:

            def commit(transaction: Transaction) -> None:
                patch.undo()
                send(transaction)

            patch.setattr(Transaction, "commit_transaction", commit)
            yield


def one_row(table: Table) -> Transaction:
    made = table.transaction()
    made.append(pa.table({"n": pa.array([1], pa.int64())}))
    return made


def loses(transaction: Transaction) -> None:
    raise CommitFailedException("409")


def goes_away(transaction: Transaction) -> None:
    raise CommitStateUnknownException("502")


def lands_and_goes_away(transaction: Transaction) -> None:
    transaction.commit_transaction()
    raise CommitStateUnknownException("502")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.catalog.engine.dispose()


def test_states_follow_each_other_each_with_its_rows(world: World) -> None:
    assert world.state() is None
    world.append(FIRST)
    world.append(SECOND)
    assert (world.state(), world.rows(), world.tries) == (SECOND, 2, 2)


def test_a_commit_that_is_there_is_not_sent_again(world: World) -> None:
    world.append(FIRST)
    world.append(FIRST)
    assert (world.state(), world.rows(), world.tries) == (FIRST, 1, 1)


def test_a_commit_whose_answer_was_lost_is_found_by_its_token(world: World) -> None:
    world.sent = [lands_and_goes_away]
    world.append(FIRST)
    assert (world.state(), world.rows(), world.tries) == (FIRST, 1, 1)


def test_a_commit_that_cannot_be_found_is_of_unknown_outcome_and_lands_when_given_again(
    world: World,
) -> None:
    world.sent = [goes_away]
    with pytest.raises(OutcomeUnknown, match=r"may or may not have landed: .*502"):
        world.append(FIRST)
    assert (world.state(), world.rows()) == (None, 0)
    world.append(FIRST)
    assert (world.state(), world.rows()) == (FIRST, 1)


def test_it_is_of_unknown_outcome_while_nobody_can_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_all_is_away(transaction: Transaction) -> None:
        transaction.commit_transaction()
        monkeypatch.setattr(world.catalog, "load_table", goes_away)
        goes_away(transaction)

    world.sent = [then_all_is_away]
    with pytest.raises(OutcomeUnknown):
        world.append(FIRST)
    monkeypatch.undo()
    world.append(FIRST)
    assert (world.state(), world.rows(), world.tries) == (FIRST, 1, 1)


def test_after_a_lost_race_it_is_prepared_again_on_the_newest_table(world: World) -> None:
    def is_overtaken_by_a_stranger(transaction: Transaction) -> None:
        one_row(world.catalog.load_table(NAME)).commit_transaction()
        transaction.commit_transaction()

    world.sent = [is_overtaken_by_a_stranger]
    world.append(FIRST)
    assert (world.state(), world.rows(), world.tries) == (FIRST, 2, 2)


@pytest.mark.parametrize(
    ("there", "state", "said"),
    [
        ((FIRST,), FOREIGN, "is at a"),
        ((), SECOND, "is at nothing"),
        ((FIRST, SECOND), FIRST, "is at b"),
    ],
    ids=["another began", "replaced", "overtaken"],
)
def test_a_commit_that_was_decided_on_another_state_is_refused(
    world: World, there: tuple[Counted, ...], state: Counted, said: str
) -> None:
    for one in there:
        world.append(one)
    with pytest.raises(Conflict, match=said) as refused:
        world.append(state)
    assert refused.value.state == "nothing of it is there"
    assert (world.rows(), world.tries) == (len(there), len(there))


def test_another_process_that_wins_in_between_is_found_after_the_lost_race(world: World) -> None:
    def is_overtaken(transaction: Transaction) -> None:
        world.append(FOREIGN)
        transaction.commit_transaction()

    world.sent = [is_overtaken]
    with pytest.raises(Conflict, match="is at x"):
        world.append(FIRST)
    assert (world.state(), world.rows()) == (FOREIGN, 1)


def test_the_budget_ends_what_others_keep_winning(world: World) -> None:
    world.sent = [loses] * 99
    with pytest.raises(TooBusy, match=f"other writers of {NAME}"):
        world.append(FIRST, budget_s=0.01)
    assert (world.state(), world.rows()) == (None, 0)


@pytest.mark.parametrize("send", [lands_and_goes_away, Transaction.commit_transaction])
def test_what_must_be_there_before_is_made_once_without_the_state(
    world: World, send: Callable[[Transaction], None]
) -> None:
    world.sent = [send]
    for _ in range(2):
        world.commits().commit_without_state(NAME, FIRST, one_row, _has_rows)
    assert (world.state(), world.rows(), world.tries) == (None, 1, 1)
    world.append(FIRST)
    with pytest.raises(BackfillError):
        world.commits().commit_without_state(NAME, FOREIGN, one_row, lambda _: False)
    assert (world.state(), world.rows()) == (FIRST, 2)


def _has_rows(table: Table) -> bool:
    return bool(table.metadata.snapshots)


def test_a_commit_that_was_refused_before_it_was_sent_is_no_unknown_outcome(world: World) -> None:
    def is_refused(transaction: Transaction) -> None:
        raise WrongClock("off", state="", fix="")

    world.sent = [is_refused]
    with pytest.raises(WrongClock):
        world.append(FIRST)
    assert (world.rows(), world.state()) == (0, None)
