"""What holds when nobody says otherwise (M8). The models take their defaults from here."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

DEFAULT_MANUAL_PUBLISH: Final = True
DEFAULT_SIDE_EFFECTS: Final = False
DEFAULT_COUNT_TOLERANCE: Final = 0.0
DEFAULT_CHECKSUM: Final[Literal["required"]] = "required"
DEFAULT_ON_CONFLICT: Final[Literal["fail"]] = "fail"
DEFAULT_CATCH_UP_ATTEMPTS: Final = 3
DEFAULT_DELETIONS: Final[Literal["block"]] = "block"
DEFAULT_ON_DELETIONS: Final[Literal["block"]] = "block"
#: The environments in which approver and requester differ.
FOUR_EYES_ENVIRONMENTS: Final = ("prod",)
#: How long the pins of a run stay after its result was accepted.
PIN_DAYS: Final = 30
#: Accepted versions that can be gone back to: so many at least, and all of so many days.
DEFAULT_KEEP_VERSIONS: Final = 10
DEFAULT_KEEP_DAYS: Final = 90
#: The compute pool and the scratch place of the profile's own Spark.
DEFAULT_COMPUTE_PLACE: Final = "default"


class DocumentedDefault(NamedTuple):
    """One default: what it is about, what holds, and where it is changed."""

    about: str
    holds: str
    change: str


DOCUMENTED_DEFAULTS: Final = (
    DocumentedDefault(
        "publication",
        "by hand, after a person accepted the result",
        "`safety.manual_publish: false` lets `run` publish an accepted result",
    ),
    DocumentedDefault(
        "side effects", "none: a job writes its shadow only", "cannot be changed yet"
    ),
    DocumentedDefault(
        "totals",
        f"equal: count tolerance {DEFAULT_COUNT_TOLERANCE:g}",
        "`validation.count_tolerance`, a share",
    ),
    DocumentedDefault(
        "checksums",
        "required: a chunk whose stored rows differ from the computed ones blocks",
        "`validation.checksum: report`",
    ),
    DocumentedDefault(
        "live changes in the same partitions",
        "the publication fails and names them",
        "`safety.on_conflict: catch_up` computes those partitions again",
    ),
    DocumentedDefault(
        "rows that were deleted on the target since the plan",
        "the publication fails: they are not brought back",
        "`deletions: reapply` of the contract takes them out of the result too",
    ),
    DocumentedDefault(
        "deletions",
        "a partition that would lose all of its rows blocks",
        "cannot be changed yet (`safety.on_deletions`)",
    ),
    DocumentedDefault(
        "open runs on the same partitions",
        "one at a time: `approve` refuses the second",
        "cancel one, or `plan --revise` it",
    ),
    DocumentedDefault(
        "pins",
        f"kept until {PIN_DAYS} days after acceptance; `maintain` lets them go then",
        "`maintain --erasure PRODUCT` ends them early, for the record",
    ),
    DocumentedDefault(
        "accepted versions",
        f"the newest {DEFAULT_KEEP_VERSIONS}, and all of the last {DEFAULT_KEEP_DAYS} days, can be gone back to",
        "`keep_versions` of the contract",
    ),
    DocumentedDefault(
        "four eyes",
        f"on in {' and '.join(FOUR_EYES_ENVIRONMENTS)}, off elsewhere",
        "`four_eyes` of the contract",
    ),
    DocumentedDefault(
        "profile",
        "must be named, except for the embedded lake inside the project",
        "`--profile NAME` or LAKEHOUSE_BACKFILL_PROFILE",
    ),
    DocumentedDefault(
        "lineage columns",
        "on for a table that the run creates, off for one that exists without them",
        "`lineage_columns` of the contract",
    ),
)
