"""What a sequence does next: numbers that hypothesis draws, made into even choices.

Hypothesis likes small numbers and repeats itself, which finds faults in data but does some actions
ten times as often as others. A number's hash has no favourites; steps can still be left out one by
one when a failing sequence is made shorter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.model.world import DAYS, Days

VERBS = (
    "plan", "approve", "stage", "validate", "accept", "publish", "cancel", "rollback_last",
    "rollback_to", "rollback_some", "recover",
)  # fmt: skip
ROLLBACKS = ("rollback_last", "rollback_to", "rollback_some")
OTHERS = ("append", "delete", "compact", "expire_metadata", "expire_files", "land")
ACTIONS = (*VERBS, *OTHERS)
BEGINNINGS = (
    "new", "planned", "approved", "staged", "validated", "accepted", "published", "second planned",
    "second staged", "second accepted", "second published", "rolled back",
)  # fmt: skip
#: Possible nearly always.
COMMON = ("plan", "cancel")
#: What a step is for, unless the step before was killed: then it is any action.
KINDS = ("crash", "crash", "crash", "go on", "go on", "any", "any")
SCOPES = tuple(DAYS[a:b] for a in range(len(DAYS)) for b in range(a + 1, len(DAYS) + 1))


@dataclass(frozen=True)
class Pick:
    """One step: what it is for, the action if it may be any, and where."""

    number: int
    beginning: str
    kind: str
    action: str
    days: Days
    place: int
    #: Which of the verbs that would get somewhere is killed, and whether it may be a common one.
    victim: float
    may_be_common: bool
    #: How far into a verb its process is killed.
    part: float
    #: Whether an action that comes right after a crash is killed too.
    is_killed_again: bool

    @classmethod
    def of(cls, number: int) -> Pick:
        chance = random.Random(number)
        return cls(
            number=number,
            beginning=chance.choice(BEGINNINGS),
            kind=chance.choice(KINDS),
            action=chance.choice(ACTIONS),
            days=chance.choice(SCOPES),
            place=chance.randrange(840),
            victim=chance.random(),
            may_be_common=chance.random() < 1 / 3,
            part=chance.random(),
            is_killed_again=chance.random() < 1 / 3,
        )


#: Up to 24 bits hypothesis draws evenly, but for the numbers at the ends.
picks = st.integers(0, 2**24 - 1).map(Pick.of)
#: Each run of hypothesis begins with a sequence of zeros: that one is left out.
first_picks = picks.filter(lambda pick: pick.number > 0)
