"""Privacy of columns: classes, masks, purposes, and the redaction of values in reports.

A masked value depends on the raw value and the secret only, so a repeated computation gives the
same rows. The secret itself is in no plan, log or table: only its name, its version and an id that
is derived from it are recorded.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field

from lakehouse_backfill.domain.serialization import Value, canonical_json, to_json_value

Classification = Literal["public", "internal", "confidential", "restricted"]
#: The classes, from the lowest to the highest.
CLASS_ORDER: Final[tuple[Classification, ...]] = (
    "public", "internal", "confidential", "restricted",
)  # fmt: skip
MaskKind = Literal["hash", "tokenise", "null", "truncate"]
#: Masks that need the secret.
KEYED_MASKS: Final = ("hash", "tokenise")
#: Among those who may replay data: everybody.
EVERYBODY: Final = "*"
#: The length, in bytes, that the secret of a mask has at least.
MIN_SECRET_BYTES: Final = 16
#: Stands for a value of a restricted column in reports.
HIDDEN: Final = "restricted"

_HASH_SHAPE = "[0-9a-f]{64}"
_TOKEN_SHAPE = "tok_[a-z2-7]{26}"  # noqa: S105 (a pattern, no secret)


class ColumnPrivacy(Value):
    """How private one column is, and how the toolkit masks it."""

    classification: Classification | None = Field(
        None, description="How private its values are; that of the contract if absent."
    )
    mask: MaskKind | None = Field(
        None,
        description="What the toolkit makes of each value before it is stored: `hash` and "
        "`tokenise` (keyed, text only), `null`, `truncate` (text only).",
    )
    length: int | None = Field(None, ge=0, description="Characters that `truncate` keeps.")
    from_: tuple[str, ...] = Field(
        (),
        alias="from",
        description="Columns of inputs (`input.column`) whose values it holds under another name.",
    )

    @property
    def shape(self) -> str | None:
        """Return the pattern of every masked value; None where no pattern tells it."""
        if self.mask == "hash":
            return _HASH_SHAPE
        return _TOKEN_SHAPE if self.mask == "tokenise" else None


class MaskKey(Value):
    """Where the secret of the masks is: exactly one of an environment variable and a file."""

    env: str | None = Field(None, description="Name of the environment variable that holds it.")
    file: str | None = Field(
        None, description="File that holds it: absolute, or relative to the project's folder."
    )
    version: str = Field(description="Name of this secret; another secret has another version.")

    @property
    def place(self) -> str:
        """Return the place by name."""
        return f"environment variable {self.env}" if self.env else f"file {self.file}"


class Privacy(Value):
    """Classes, masks and permitted uses of a product's rows."""

    columns: dict[str, ColumnPrivacy] = Field(
        default_factory=dict, description="Columns that are more, or less, private than the rest."
    )
    key: MaskKey | None = Field(None, description="The secret of `hash` and `tokenise`.")
    purposes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Purposes that the data may be used for; for each, who may replay it "
        "(`*`: everybody).",
    )


class InputPrivacy(Value):
    """What is declared of an input: by its contract in the project, or by the run manifest."""

    classification: Classification | None = Field(
        None, description="How private its rows are; not known if absent."
    )
    columns: dict[str, Classification] = Field(
        default_factory=dict, description="Columns of another class than the rest."
    )
    purposes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Purposes that the data may be used for; for each, who may replay it "
        "(`*`: everybody).",
    )
    retention_days: int | None = Field(
        None, ge=1, description="How many days a row may be kept; without limit if absent."
    )

    def class_of(self, column: str) -> Classification | None:
        """Return the class of a column; None where nothing is declared."""
        by_name = {name.casefold(): value for name, value in self.columns.items()}
        return by_name.get(column.casefold(), self.classification)

    @property
    def is_restricted(self) -> bool:
        """Whether any of its values are restricted."""
        return "restricted" in (self.classification, *self.columns.values())


class MaskKeyPin(Value):
    """The secret that a run was planned with: its place and version by name, and its id."""

    place: str
    version: str
    key_id: str


class MaskSources(Value):
    """What the stored values of masked columns are compared with.

    `raw` has, by column, the inputs and columns with its raw values. `copies` has, by column of the
    output in lower case, the column of an input (`input.column`) that it copies; `partitions` are
    those that were computed from the pinned inputs. `unseen` says why there are none.
    """

    raw: dict[str, tuple[tuple[str, str], ...]]
    copies: dict[str, str] = Field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    unseen: str = ""


class MaskedColumn(Value):
    """What the stored values of one masked column are; counts of rows."""

    column: str
    values: int
    #: Values without the mask's shape, longer than it allows, or not null.
    misshapen: int
    #: Values that an input holds in the same column; None: they were not compared.
    raw: int | None = None
    #: Values that are not the mask of an input's value, which is `made_of`, in the rows with the
    #: same `by`; None: they were not computed again, `unseen` says why.
    foreign: int | None = None
    made_of: str = ""
    by: tuple[str, ...] = ()
    unseen: str = ""
    #: Values that are the mask of one of several values of the input in rows with the same `by`;
    #: which of them belongs to the row is not known.
    ambiguous: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether each value was compared with the only one that it may be."""
        return not (self.unseen or self.ambiguous)


def class_rank(value: Classification | None) -> int:
    """Return the place of a class among all; unknown is the lowest."""
    return -1 if value is None else CLASS_ORDER.index(value)


def derived_key(secret: bytes, use: str) -> bytes:
    """Return the key for one use; nothing leads from it back to the secret."""
    return hmac.digest(secret, f"lakehouse-backfill {use}".encode(), "sha256")


def key_id(secret: bytes) -> str:
    """Return the id by which a changed secret is noticed."""
    return derived_key(secret, "id").hex()[:16]


@dataclass(frozen=True)
class Redaction:
    """The columns whose values no report shows.

    With a key, equal values of a column stay equal: they are shown as a keyed hash. Without one
    they are left out. Null is shown.
    """

    columns: frozenset[str] = frozenset()
    key: bytes = field(default=b"", repr=False)

    @staticmethod
    def of(columns: Iterable[str], secret: bytes = b"") -> Redaction:
        """Return the redaction of these columns, whatever the case of their letters."""
        names = frozenset(name.casefold() for name in columns)
        return Redaction(names, derived_key(secret, "reports") if secret else b"")

    def __bool__(self) -> bool:
        return bool(self.columns)

    def hides(self, column: str) -> bool:
        """Return whether the values of a column, or of a part of it, are hidden."""
        name = column.casefold()
        return name in self.columns or name.partition(".")[0] in self.columns

    def value(self, column: str, value: Any) -> Any:
        """Return the value as a report may show it."""
        if value is None or not self.hides(column):
            return value
        if not self.key:
            return HIDDEN
        text = f"{column.casefold()}\0{canonical_json(to_json_value(value))}"
        return f"{HIDDEN}:{hmac.digest(self.key, text.encode(), 'sha256').hex()[:16]}"

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as a report may show it."""
        return {name: self.value(name, value) for name, value in row.items()}


NOTHING_HIDDEN: Final = Redaction()
