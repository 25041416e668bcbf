"""Every user-facing error.

An error has the problem, the state of the data, the fix, a code and an exit code.

BackfillError                      code               exit
├── ConfigError                    invalid-config      2   declarations are wrong
├── NotFound                       not-found           2   a named object does not exist
│   └── LostFile                   not-found               a file that a table lists is gone
│       └── DamagedFile            damaged-file            or is there and cannot be read
├── Unsupported                    unsupported         2   refused; the fix says what is possible
├── IllegalMove                    illegal-move        2   the run's state forbids the verb
├── Blocked                        blocked             3   checks, approvals or limits say no
│   ├── ChecksFailed               checks-failed
│   ├── ApprovalMissing            approval-missing
│   ├── NotAllowed                 not-allowed             the person does not hold the role
│   ├── LimitExceeded              limit-exceeded
│   ├── RunPaused                  run-paused              a person paused the run
│   ├── NonDeterministic           not-deterministic       two runs of the code may differ
│   ├── Tampered                   tampered                approved content was edited since
│   ├── WriteForbidden             write-forbidden         a job tried to write outside its shadow
│   └── RejectedInput              rejected-input          a file or page of a source is bad
├── Conflict                       conflict            4   another process was first; plan again
│   ├── RunMoved                   run-moved
│   ├── PointerMoved               pointer-moved
│   ├── TargetChanged              target-changed          a live commit touched the partitions
│   └── TooBusy                    too-busy
├── OutcomeUnknown                 outcome-unknown     5   a commit may or may not have landed
└── EnvironmentDown                environment-down    6   catalog, store or Java; a retry may help
    ├── JavaMissing                java-missing
    ├── WrongClock                 wrong-clock             this machine's, or the other one
    ├── SourceDown                 source-down             a source does not answer
    └── CatalogDown                catalog-down
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, ClassVar

from lakehouse_backfill.fault_points import describe_commits

#: Set once a product with restricted columns is worked on in this process.
_hides_texts = Event()


def hide_texts() -> None:
    """Leave the texts of other libraries' errors out of ours from now on: they may quote a value.

    Holds for the process, which works on restricted columns.
    """
    _hides_texts.set()


def hides_texts() -> bool:
    """Return whether texts that may quote a value of a restricted column are left out."""
    return _hides_texts.is_set()


def text_of(error: BaseException) -> str:
    """Return the text of another library's error, as far as ours may show it."""
    if hides_texts():
        return f"{type(error).__name__}; its text may quote a restricted value, and is not shown"
    return without_secrets(str(error))


#: Texts that no error shows: see `mask_secrets`.
_secrets: set[str] = set()
#: A token, or a field of a login, as servers quote them from a request.
_QUOTED_SECRET = re.compile(
    r"""(?i)(\bbearer\s+|\b(?:client_secret|access_token|refresh_token)["']?\s*[=:]\s*["']?)"""
    r"""[^\s"'&,;<>]{8,}"""
)


def mask_secrets(texts: Iterable[str]) -> None:
    """Leave these texts out of errors and tracebacks of this process from now on."""
    _secrets.update(filter(None, texts))


def without_secrets(text: str) -> str:
    """Return the text with *** for masked secrets, bearer tokens, and secret fields of a login.

    A token that a server issued and quotes without its name is not recognised.
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _QUOTED_SECRET.sub(r"\1***", text)


class BackfillError(Exception):
    """Root of the tree.

    `problem` describes the error, without secrets; `state` answers "is my data safe", `fix` is
    what to type.
    """

    code: ClassVar[str] = "bug"
    exit_code: ClassVar[int] = 1
    retry_may_help: ClassVar[bool] = False

    def __init__(
        self,
        problem: str,
        *,
        state: str = "",
        fix: str = "",
        field: str = "",
        faults: tuple[Fault, ...] = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the texts; `field` names the wrong field, `faults` lists all wrong fields.

        Without a `state`, it names the commits of the command until now, if there are any.
        `data` holds for programs, as plain JSON values, what the texts say for people.
        """
        problem = without_secrets(problem)
        super().__init__(problem)
        self.problem = problem
        self.state = state or describe_commits()
        self.fix = fix
        self.field = field
        self.faults = faults
        self.data: dict[str, Any] = dict(data or {})

    def complete_commands(self, complete: Callable[[str], str]) -> None:
        """Complete the commands of the texts: see `Invocation.complete`."""
        self.problem, self.state = complete(self.problem), complete(self.state)
        self.fix = complete(self.fix)

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.problem}", f"  state: {self.state}"]
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Fault:
    """One wrong field of a declaration: its location and what to write instead."""

    file: str
    line: int
    field: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}: {self.problem} ({self.fix})"


def problem_with_faults(problem: str, faults: tuple[Fault, ...]) -> str:
    """Return the problem with one line for each fault below it."""
    return "\n  ".join([problem, *(str(fault) for fault in faults)])


@contextmanager
def attach_error_field(field: str) -> Iterator[None]:
    """Set the field of a declaration on an error raised inside, unless it names one itself."""
    try:
        yield
    except BackfillError as error:
        error.field = error.field or field
        raise


class ConfigError(BackfillError):
    """Declarations are wrong; all faults are reported at once."""

    code = "invalid-config"
    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        faults: tuple[Fault, ...] = (),
        state: str = "",
        fix: str = "",
        field: str = "",
    ) -> None:
        text = problem_with_faults(problem, faults)
        state = state or "nothing was read or changed"
        super().__init__(text, state=state, fix=fix, field=field, faults=faults)


class NotFound(BackfillError):
    """A named run, product, table, snapshot or file does not exist."""

    code = "not-found"
    exit_code = 2


class LostFile(NotFound):
    """A file that a table lists is gone: what it held is lost to readers, too."""


class DamagedFile(LostFile):
    """A file that a table lists is there, and cannot be read."""

    code = "damaged-file"

    def __init__(self, location: str, cause: Exception | str) -> None:
        """Name the file, and what its reader said."""
        said = next(iter(str(cause).strip().splitlines()), "")
        if isinstance(cause, Exception):
            said = f"{type(cause).__name__}: {said}"
        super().__init__(
            f"{location} is damaged: {said}",
            state="no file was deleted; what this command did before it met the file stays",
            fix="restore the file from the store's own history or from a copy; then give the "
            "command again, or lakehouse-backfill recover --all",
        )


class Unsupported(BackfillError):
    """The table or request is outside what this build does safely."""

    code = "unsupported"
    exit_code = 2


class IllegalMove(BackfillError):
    """The run's state does not allow the verb; the error names the legal ones."""

    code = "illegal-move"
    exit_code = 2


class Blocked(BackfillError):
    """Checks, approvals or limits refuse the command."""

    code = "blocked"
    exit_code = 3


class ChecksFailed(Blocked):
    """At least one gate failed; `stop` records for the run's log which one, and where."""

    code = "checks-failed"

    def __init__(
        self,
        problem: str,
        *,
        state: str = "",
        fix: str = "",
        stop: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(problem, state=state, fix=fix)
        self.stop = stop or {}


class ApprovalMissing(Blocked):
    """A decision is missing, or was made on another manifest or result."""

    code = "approval-missing"


class NotAllowed(Blocked):
    """The person does not hold the role that the contract asks for."""

    code = "not-allowed"


class LimitExceeded(Blocked):
    """The plan is larger than a declared limit, or later than its deadline."""

    code = "limit-exceeded"


class RunPaused(Blocked):
    """A person paused the run; nothing of it starts before `unpause`."""

    code = "run-paused"


class NonDeterministic(Blocked):
    """Two runs of the job on the same input may differ; `faults` name each place."""

    code = "not-deterministic"

    def __init__(self, problem: str, *, faults: tuple[Fault, ...], state: str, fix: str) -> None:
        text = problem_with_faults(problem, faults)
        super().__init__(text, state=state, fix=fix, faults=faults)


class Tampered(Blocked):
    """The stored content is not the approved content: it was edited in between."""

    code = "tampered"


class WriteForbidden(Blocked):
    """A job tried to write through its read-only session."""

    code = "write-forbidden"


class RejectedInput(Blocked):
    """A part of a source, such as a file, is bad; a retry meets the same part."""

    code = "rejected-input"


class Conflict(BackfillError):
    """Another process was first; plan again."""

    code = "conflict"
    exit_code = 4


class RunMoved(Conflict):
    """Another process changed the run's state."""

    code = "run-moved"


class PointerMoved(Conflict):
    """Another publication of the product was first."""

    code = "pointer-moved"


class TargetChanged(Conflict):
    """A live commit touched the run's partitions since they were pinned."""

    code = "target-changed"


class HistoryGone(TargetChanged):
    """Partitions hold other files than at a snapshot, and the commits in between have expired."""


class TooBusy(Conflict):
    """Other writers were first until the time budget ended; a retry may help."""

    code = "too-busy"
    retry_may_help = True


class OutcomeUnknown(BackfillError):
    """A commit may or may not have landed; everything is kept."""

    code = "outcome-unknown"
    exit_code = 5


class EnvironmentDown(BackfillError):
    """Catalog, store or Java does not answer; a retry may help."""

    code = "environment-down"
    exit_code = 6
    retry_may_help = True


class WrongClock(EnvironmentDown):
    """A clock is wrong, so that a commit would lie in the future or in the past."""

    code = "wrong-clock"
    retry_may_help = False


class JavaMissing(EnvironmentDown):
    """No Java 17 or 21 was found, and the command needs Spark."""

    code = "java-missing"
    retry_may_help = False


class SourceDown(EnvironmentDown):
    """A source does not answer, or only by an error that a later try may not get."""

    code = "source-down"


class CatalogDown(EnvironmentDown):
    """The catalog does not answer."""

    code = "catalog-down"


#: What to do where a catalog answers 401, 403 or 400, to Python or to Spark.
LOGIN_FIX = (
    "correct token, credential or oauth2-server-uri of the profile's catalog: docs/catalogs.md"
)
RIGHTS_FIX = (
    "give the account the right that docs/catalogs.md names for the command, or change the "
    "catalog's setting; lakehouse-backfill doctor tries out what is allowed"
)
REFUSAL_FIX = "lakehouse-backfill doctor tries out what this catalog allows: docs/catalogs.md"
#: What it says in a bad request for a commit that another one was faster than.
LOST_RACE = "sequence number"


@contextmanager
def noting_failure(error: BackfillError) -> Iterator[None]:
    """Raise the error after the block, also where it cannot be noted: it tells what landed."""
    with suppress(EnvironmentDown, OutcomeUnknown):
        yield
    raise error
