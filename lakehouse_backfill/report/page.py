"""The evidence page, one self-contained HTML file, and the archive beside it.

Also compares page and archive of a run, as they lie in a folder, with the lake.

The index: one page that lists all runs, beside their evidence pages.

The stages of the run, as its plan listed them, and how far the run has come.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from markupsafe import Markup

from lakehouse_backfill.command_lines import Invocation, command_line
from lakehouse_backfill.core.evidence.document import evidence_document
from lakehouse_backfill.core.evidence.status import WAITING_FOR_PEOPLE, list_runs
from lakehouse_backfill.core.planning.stages import Phase, Stage, plan_stages
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.checks import StoredCheck
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import BackfillError, ConfigError, EnvironmentDown
from lakehouse_backfill.report import break_glass, changes, lineage, summary
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import render, show_invisible
from lakehouse_backfill.report.summary import STATE_TONES, UNDER_WAY

if TYPE_CHECKING:
    from markupsafe import Markup

    from lakehouse_backfill.results.base import Result

    AnyResult = TypeVar("AnyResult", bound=Result)
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.domain.run import RunStatus

#: Stages that have a mark and a line of their own; further chunks are counted.
MAX_STAGES = 60
#: By phase, the events of which one says that all of its stages were done.
_ENDS: dict[Phase, tuple[str, ...]] = {
    "plan": ("plan",),
    "approval": ("approve", "carry approval"),
    "staging": ("finish staging",),
    "validation": ("pass validation", "fail validation"),
    "acceptance": ("accept", "carry acceptance"),
    "publication": ("finish publishing",),
    "upkeep": ("retire",),
}
_STEP = 16


@dataclass(frozen=True)
class StageMark:
    """A stage at its place in the picture, and whether the run's log says that it was done."""

    stage: Stage
    is_done: bool
    x: int

    @property
    def title(self) -> str:
        """The name of the stage, as people read it."""
        return self.stage.chunk_id or self.stage.kind.replace("_", " ")


def stages_figure(dossier: Dossier) -> Markup:
    """Draw one mark for each stage, in order, and name them in a table below."""
    marks = tuple(_marks(dossier))
    done = sum(mark.is_done for mark in marks)
    return render(
        "stages.html",
        marks=marks[:MAX_STAGES],
        hidden=len(marks) - len(marks[:MAX_STAGES]),
        width=max(len(marks[:MAX_STAGES]), 1) * _STEP,
        title=f"{done} of {len(marks)} stages of the plan were done",
    )


def work_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the picture of the stages."""
    return {"figure": stages_figure(dossier)}


def _marks(dossier: Dossier) -> Iterable[StageMark]:
    """Yield the stages; a chunk is done when the ledger says so, others by their phase's end."""
    verbs = {event.verb for event in dossier.events}
    chunks = {record.chunk_id for record in dossier.chunks if record.status == "done"}
    for number, stage in enumerate(plan_stages(dossier.plan)):
        ended = not verbs.isdisjoint(_ENDS[stage.phase])
        is_done = stage.chunk_id in chunks if stage.chunk_id else ended
        yield StageMark(stage, is_done, number * _STEP)


_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
#: Bytes of the sections together: with head and style sheet the page stays below 2 MB.
MAX_PAGE_BYTES = 1_900_000
#: The sections, in their order: anchor, short name, title, and what its template needs.
_SECTIONS: tuple[tuple[str, str, str, Callable[[Dossier], dict[str, Any]] | None], ...] = (
    ("why", "why", "Why, and for whom", None),
    ("where", "where", "Where it changes", changes.where_facts),
    ("totals", "totals", "Totals of the product, before and after", changes.totals_facts),
    ("checks", "checks", "Checks", None),
    ("edge", "edges", "Edges of the range", None),
    ("columns", "columns", "Columns", changes.columns_facts),
    ("samples", "examples", "Examples", None),
    ("causes", "causes", "Why it changes", changes.causes_facts),
    ("decisions", "decisions", "Decisions", None),
    ("lineage", "lineage", "Where it comes from", lineage.lineage_facts),
    ("identity", "identity", "Identity", None),
    ("work", "work", "How it was done", work_facts),
    ("next", "way back", "Check it, or take it back", break_glass.next_facts),
)


def write_evidence_files(document: dict[str, Any], folder: Path) -> Path:
    """Write `<run_id>.json` and `<run_id>.html` into `folder`; give the page's path.

    Each file appears whole or not at all: it is written beside its place and renamed. Last comes
    `<run_id>.sha256`, by which `verify` and `sha256sum --check` see whether one was edited.
    Raises ConfigError (a run id that is no plain name), EnvironmentDown (the folder).
    """
    run_id = str(document["run"]["run_id"])
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(f"{run_id[:100]!r} is no run id", fix="lakehouse-backfill status --all")
    page = folder / f"{run_id}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {page.with_suffix(".json"): archive_json(document), page: render_page(document)}
        for path, text in texts.items():
            _replace_file(path, text)
        _replace_file(page.with_suffix(".sha256"), checksum_lines(texts))
    except OSError as error:
        raise EnvironmentDown(
            f"the evidence page cannot be written: {error}",
            state="only the page is missing; the run and its evidence are in the lake",
            fix=f"lakehouse-backfill evidence {run_id} --export DIR",
        ) from error
    return page


def checksum_lines(texts: Mapping[Path, str]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    marks = {
        path.name: hashlib.sha256(_encode_text(text)).hexdigest() for path, text in texts.items()
    }
    return "".join(f"{mark}  {name}\n" for name, mark in marks.items())


def _encode_text(text: str) -> bytes:
    # Half a character (a lone surrogate) has no UTF-8; JSON reads it back from its escape.
    return text.encode("utf-8", "backslashreplace")


def archive_json(document: dict[str, Any]) -> str:
    """Return the document as JSON for people and programs: sorted, indented, no NaN."""
    return (
        json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    )


def render_page(document: dict[str, Any]) -> str:
    """Return the whole page; the same document gives the same text."""
    dossier = Dossier.model_validate(document)
    page = render(
        "page.html",
        dossier=dossier,
        sections=_fit_sections(dossier),
        links=[(anchor, name) for anchor, name, _, _ in _SECTIONS],
        **summary.heading_facts(dossier),
    )
    return show_invisible(page)


def render_section(dossier: Dossier, anchor: str) -> Markup:
    """Return one section of the page."""
    title, facts = next((title, facts) for name, _, title, facts in _SECTIONS if name == anchor)
    values = facts(dossier) if facts else {}
    body = render(f"{anchor}.html", dossier=dossier, validation=dossier.validation, **values)
    return render("section.html", anchor=anchor, title=title, body=body)


def _fit_sections(dossier: Dossier) -> list[Markup]:
    """Leave the largest sections to the archive until the rest fits; each part has its own limits.

    So this is for values that nobody foresaw: the promise of `MAX_PAGE_BYTES` holds for them too.
    """
    sections = [render_section(dossier, anchor) for anchor, _, _, _ in _SECTIONS]
    sizes = [len(_encode_text(each)) for each in sections]
    while sum(sizes) > MAX_PAGE_BYTES:
        largest = sizes.index(max(sizes))
        anchor, name, _, _ = _SECTIONS[largest]
        body = render("omitted.html", run_id=dossier.run.run_id)
        sections[largest] = render(
            "section.html", anchor=anchor, title=name.capitalize(), body=body
        )
        sizes[largest] = len(sections[largest])
    return sections


def _replace_file(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(_encode_text(text))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


EvidenceDocument = Mapping[str, Any]
#: What changes without an event of the run: who reads the archive later sees another one.
_VOLATILE_FIELDS = frozenset({"run", "standing", "dual_reads", "steps", "profile"})
#: What an older archive must share with a newer one.
_CONSTANT_FIELDS = ("plan", "scope", "code")


def check_evidence_files(folder: Path, document: EvidenceDocument) -> tuple[StoredCheck, ...]:
    """Compare the run's files in the folder with the document that the lake gives now.

    The archive may be older than the lake: then its events must be the first ones of the log. The
    page must be the one that was written with its checksum, or the one that the archive gives.
    """
    run_id = str(document["run"]["run_id"])
    archive, page = folder / f"{run_id}.json", folder / f"{run_id}.html"
    written = _read_checksums(folder / f"{run_id}.sha256")
    found = []
    if archive.is_file():
        found.append(_check_archive(archive, document))
    if page.is_file():
        found.append(_check_page(page, archive, written))
    if not found:
        because = f"neither {archive.name} nor {page.name} is in {folder}"
        return (StoredCheck(name="evidence files", ok=None, because=because),)
    return tuple(found)


def _read_checksums(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: mark for mark, name in pairs}


def _check_archive(file: Path, document: EvidenceDocument) -> StoredCheck:
    name = f"evidence file {file.name}"
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        differing = _differing_fields(held, document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        because = f"it is no archive any more: {type(error).__name__}"
        return StoredCheck(name=name, ok=False, because=because)
    if differing:
        because = f"it differs from the lake in {', '.join(differing)}"
        return StoredCheck(name=name, ok=False, found=differing, because=because)
    is_older = len(held["events"]) < len(document["events"])
    because = "the lake has later events; this page is older" if is_older else "as the lake"
    return StoredCheck(name=name, ok=True, because=because)


def _differing_fields(held: EvidenceDocument, document: EvidenceDocument) -> list[str]:
    events = list(document["events"])[: len(held["events"])]
    names = set(_CONSTANT_FIELDS)
    if len(held["events"]) == len(document["events"]):
        names = (set(held) | set(document)) - _VOLATILE_FIELDS
    wrong = [name for name in sorted(names) if held.get(name) != document.get(name)]
    if list(held["events"]) != events:
        wrong.append("events")
    if held.get("validation") is not None and digest(held["validation"]) != held.get(
        "validation_digest"
    ):
        wrong.append("validation")
    return sorted(set(wrong))


def _check_page(file: Path, archive: Path, written: Mapping[str, str]) -> StoredCheck:
    name, data = f"evidence file {file.name}", file.read_bytes()
    mark = hashlib.sha256(data).hexdigest()
    if written.get(file.name) == mark:
        return StoredCheck(name=name, ok=True, expected=mark, found=mark, because="its checksum")
    try:
        text = render_page(json.loads(archive.read_text(encoding="utf-8")))
        made = text.encode("utf-8", "backslashreplace")
    except (OSError, ValueError, KeyError, TypeError):
        made = b""
    if data == made:
        return StoredCheck(name=name, ok=True, because="it is what the archive gives")
    return StoredCheck(
        name=name,
        ok=False,
        expected=written.get(file.name),
        found=mark,
        because="it was edited: it has another checksum, and is not what the archive gives",
    )


class EvidencePages:
    """The evidence pages of a project's runs, kept up to date by the verbs that change a run."""

    def __init__(
        self,
        context: Callable[[], Context],
        folder: Path,
        profile: str = "",
        view: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Read the lake through `context`, made on first use; write into `folder`.

        `profile` is the lake, as the call named it: the commands of the pages name it too. A page
        is put together in one `view` of the lake.
        """
        self._profile = profile
        self._view = view
        self._context = context
        self._folder = folder

    def write(self, run: str, folder: Path | None = None) -> Path:
        """Write page and archive of a run, and the index; return the path of the page."""
        page = self._write_page(run, folder or self._folder)
        self._write_index(page.parent)
        return page

    def _write_page(self, run: str, folder: Path) -> Path:
        named = {"profile": self._profile} if self._profile else {}
        with self._view():
            document = evidence_document(self._context(), run) | named
        return write_evidence_files(document, folder)

    def _write_index(self, folder: Path) -> None:
        """Write the list of all runs beside their pages; the page is there, whatever becomes of it.

        The next page that is written writes it again.
        """
        context = self._context()
        try:
            with self._view():
                runs = list_runs(context, everything=True)
            _replace_file(folder / INDEX_FILE, render_index(runs, folder, self._profile))
        except (BackfillError, OSError) as error:
            context.journal.log("index not written", problem=str(error))

    def write_all(self, *runs: str) -> tuple[list[str], list[str]]:
        """Write what can be written; return the pages, and a sentence for each that is missing."""
        written, warnings = [], []
        for run in runs:
            try:
                written.append(str(self._write_page(run, self._folder)))
            except Exception as error:  # noqa: BLE001 (the act is done, whatever a page says)
                problem = error.problem if isinstance(error, BackfillError) else repr(error)
                fix = command_line("evidence", run)
                warnings.append(f"the page of {run} is not up to date: {problem}; later: {fix}")
                self._context().journal_of(run).log("page not written", problem=problem)
        if written:
            self._write_index(self._folder)
        return written, warnings

    def add_links(self, result: AnyResult, *runs: str) -> AnyResult:
        """Write the pages of the runs; add where they are, or a warning, to the result."""
        written, warnings = self.write_all(*runs)
        report = written[0] if len(written) == 1 else result.report
        return replace(result, report=report, warnings=(*result.warnings, *warnings))

    def add_existing_link(self, result: AnyResult, run: str) -> AnyResult:
        """Do the same for a run that may have no page yet; then nothing is written."""
        return self.add_links(result, run) if self._exists(run) else result

    def update_existing(self, run: str) -> None:
        """Write the page of a run again if it has one."""
        if self._exists(run):
            self.write_all(run)

    @contextmanager
    def written_on_error(self, *runs: str, only_existing: bool = False) -> Iterator[None]:
        """Write the pages of the runs when the act fails; with `only_existing`, none anew."""
        try:
            yield
        except Exception:
            self.write_all(*(run for run in runs if not only_existing or self._exists(run)))
            raise

    def run_marks(self) -> dict[str, object]:
        """Return what the page of each run depends on: its last event, and later rollbacks."""
        context = self._context()
        with self._view():
            runs = context.runs.list(open_only=False)
            products = {run.product for run in runs}
            histories = {name: context.versions.history(name) for name in products}
        return {
            run.run_id: (run.seq, pointer.rolled_back_since(histories[run.product], run.run_id))
            for run in runs
        }

    def changed_since(self, marks: dict[str, object]) -> list[str]:
        """Return the runs whose marks differ from `marks`; runs that `marks` lacks do not count."""
        return [run for run, mark in self.run_marks().items() if marks.get(run, mark) != mark]

    def _exists(self, run: str) -> bool:
        return (self._folder / f"{run}.html").exists()


INDEX_FILE = "index.html"
#: Runs on the index; `status --all` lists the others.
MAX_LISTED = 150


def render_index(runs: Sequence[RunStatus], folder: Path, profile: str = "") -> str:
    """Return the index of runs, in their order; linked are those whose page is in the folder.

    `profile` is the lake, as the call named it.
    Works without network and script, as the pages do.
    """
    rows = [
        (
            run,
            (folder / f"{run.run_id}.html").is_file(),
            *STATE_TONES.get(run.state, UNDER_WAY),
            run.state.value in WAITING_FOR_PEOPLE,
        )
        for run in runs[:MAX_LISTED]
    ]
    page = render(
        "index.html",
        rows=rows,
        more=max(0, len(runs) - MAX_LISTED),
        typed=Invocation(profile=profile).complete,
        newest=max((run.at for run in runs), default=None),
    )
    return show_invisible(page)
