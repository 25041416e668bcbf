"""What holds when nobody says otherwise (M8). The models take their defaults from here."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

MANUAL_PUBLISH: Final = True
SIDE_EFFECTS: Final = False
COUNT_TOLERANCE: Final = 0.0
CHECKSUM: Final[Literal["required"]] = "required"
ON_CONFLICT: Final[Literal["fail"]] = "fail"
CATCH_UP_ATTEMPTS: Final = 3
DELETIONS: Final[Literal["block"]] = "block"
ON_DELETIONS: Final[Literal["block"]] = "block"
#: The environments in which approver and requester differ.
FOUR_EYES_IN: Final = ("prod",)
#: How long the pins of a run stay after its result was accepted.
PIN_DAYS: Final = 30
#: Accepted versions that can be gone back to: so many at least, and all of so many days.
KEEP_VERSIONS: Final = 10
KEEP_DAYS: Final = 90
#: The compute pool and the scratch place of the profile's own Spark.
OF_PROFILE: Final = "default"


class Default(NamedTuple):
    """One default: what it is about, what holds, and where it is changed."""

    about: str
    holds: str
    change: str


DEFAULTS: Final = (
    Default(
        "publication",
        "by hand, after a person accepted the result",
        "`safety.manual_publish: false` lets `run` publish an accepted result",
    ),
    Default("side effects", "none: a job writes its shadow only", "cannot be changed yet"),
    Default(
        "totals",
        f"equal: count tolerance {COUNT_TOLERANCE:g}",
        "`validation.count_tolerance`, a share",
    ),
    Default(
        "checksums",
        "required: a chunk whose stored rows differ from the computed ones blocks",
        "`validation.checksum: report`",
    ),
    Default(
        "live changes in the same partitions",
        "the publication fails and names them",
        "`safety.on_conflict: catch_up` computes those partitions again",
    ),
    Default(
        "rows that were deleted on the target since the plan",
        "the publication fails: they are not brought back",
        "`deletions: reapply` of the contract takes them out of the result too",
    ),
    Default(
        "deletions",
        "a partition that would lose all of its rows blocks",
        "cannot be changed yet (`safety.on_deletions`)",
    ),
    Default(
        "open runs on the same partitions",
        "one at a time: `approve` refuses the second",
        "cancel one, or `plan --revise` it",
    ),
    Default(
        "pins",
        f"kept until {PIN_DAYS} days after acceptance; `maintain` lets them go then",
        "`maintain --erasure PRODUCT` ends them early, for the record",
    ),
    Default(
        "accepted versions",
        f"the newest {KEEP_VERSIONS}, and all of the last {KEEP_DAYS} days, can be gone back to",
        "`keep_versions` of the contract",
    ),
    Default(
        "four eyes",
        f"on in {' and '.join(FOUR_EYES_IN)}, off elsewhere",
        "`four_eyes` of the contract",
    ),
    Default(
        "profile",
        "must be named, except for the embedded lake inside the project",
        "`--profile NAME` or LAKEHOUSE_BACKFILL_PROFILE",
    ),
    Default(
        "lineage columns",
        "on for a table that the run creates, off for one that exists without them",
        "`lineage_columns` of the contract",
    ),
)
