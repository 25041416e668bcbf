"""The program as a group of commands: help by phase, and the one place where errors end.

Also makes text safe for terminals. Loads nothing else, because every error needs it.

The one JSON object of `--json`.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from lakehouse_backfill.command_lines import SplitArguments, split_arguments
from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
    EnvironmentDown,
    hides_texts,
    text_of,
    without_secrets,
)
from lakehouse_backfill.fault_points import describe_commits


def clean_text(value: Any) -> str:
    """Return text without control characters: data must not move somebody's cursor."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1]
        for letter in str(value)
    )


PHASES = ("before", "during", "after", "repair")
DEBUG_VARIABLE = "LAKEHOUSE_BACKFILL_DEBUG"
_ARGUMENTS_KEY = "lakehouse_backfill.words"
#: 128 + SIGPIPE: what a shell reports for a program whose reader went away.
_BROKEN_PIPE_EXIT_CODE = 141


class UsageError(BackfillError):
    """The command line is wrong."""

    code = "usage"
    exit_code = 2


class Interrupted(BackfillError):
    """Somebody pressed Ctrl-C."""

    code = "interrupted"
    exit_code = 130


class BackfillGroup(TyperGroup):
    """Every error leaves here: as text on stderr or as the JSON object, with its exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse the program's options; they may stand anywhere."""
        words = split_arguments(args)
        with self._report_errors(words):
            context = super().make_context(
                info_name, [*words.program_options, *words.command_arguments], parent, **extra
            )
        context.meta[_ARGUMENTS_KEY] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        """Run the command, print what it returns, and end its errors."""
        words = ctx.meta[_ARGUMENTS_KEY]
        with self._report_errors(words):
            try:
                result = super().invoke(ctx)
            finally:
                getattr(ctx.obj, "end_progress", lambda: None)()
            if result is not None:
                ctx.obj.show(self._command_name(words), result)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options without those of shell completion, which docs/install.md describes."""
        for option in self.params:
            if option.name in ("install_completion", "show_completion"):
                option.hidden = True  # type: ignore[attr-defined]
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by the phase of a restatement in which they are used."""
        for phase in PHASES:
            found = [self.commands[name] for name in self.list_commands(ctx)]
            rows = [
                (str(item.name), item.get_short_help_str(limit=formatter.width))
                for item in found
                if getattr(item, "rich_help_panel", None) == phase
            ]
            if rows:
                with formatter.section(phase.capitalize()):
                    formatter.write_dl(rows)

    @contextmanager
    def _report_errors(self, words: SplitArguments) -> Iterator[None]:
        try:
            yield
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            _exit_quietly()
        except KeyboardInterrupt:
            self._report_error(words, _interrupted_error())
        except BackfillError as error:
            self._report_error(words, error)
        except Exception as error:
            if not _is_usage_error(error):
                self._report_error(words, _unexpected_error(error))
            elif not words.wants_json:
                raise _show_usage(error) from error
            else:
                self._report_error(
                    words, UsageError(_usage_message(error), fix="add --help to see what fits")
                )

    def _command_name(self, words: SplitArguments) -> str:
        groups = [name for name, item in self.commands.items() if hasattr(item, "commands")]
        return words.command_name(groups)

    def _report_error(self, words: SplitArguments, error: BackfillError) -> None:
        error.complete_commands(words.invocation.complete)
        if words.wants_traceback or os.environ.get(DEBUG_VARIABLE):
            sys.stderr.write(clean_text(_traceback_text()))
        if words.wants_json and not isinstance(error, OutputLost):
            try:
                with output_to_stdout():
                    write_json(build_envelope(self._command_name(words), error=error), sys.stdout)
            except OutputLost:
                sys.stderr.write(f"{clean_text(error)}\n")
        else:
            sys.stderr.write(f"{clean_text(error)}\n")
        raise typer.Exit(error.exit_code)


def _is_usage_error(error: Exception) -> bool:
    """Describe a wrong command line from a bug; typer's own base class for it has moved twice."""
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == 2


def _show_usage(error: Exception) -> typer.Exit:
    """Show usage and the hint as typer does, but without what could move the cursor."""
    shown = io.StringIO()
    error.show(file=shown)  # type: ignore[attr-defined]
    sys.stderr.write(clean_text(shown.getvalue()))
    return typer.Exit(UsageError.exit_code)


def _usage_message(error: Exception) -> str:
    text: str = error.format_message()  # type: ignore[attr-defined]
    # Without a command, typer gives the whole help as the message.
    return "no command was given" if text.startswith("Usage:") or not text else text


def _interrupted_error() -> Interrupted:
    return Interrupted(
        "stopped by Ctrl-C",
        state="what was committed is kept; a publication landed whole or not at all",
        fix="lakehouse-backfill status, then give the same command again: it goes on from there",
    )


def _traceback_text() -> str:
    """Return the traceback with its causes, without secrets.

    The texts are left out, too, where they may quote a value of a restricted column.
    """
    if not hides_texts():
        return without_secrets(traceback.format_exc())
    parts, error = [], sys.exc_info()[1]
    while error is not None:
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"{frames}{type(error).__name__}; {_HIDDEN_TEXTS}\n")
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


_HIDDEN_TEXTS = "texts of errors may quote a restricted value, and are not shown"


def _unexpected_error(error: Exception) -> BackfillError:
    if str(error).rstrip(": \n").endswith("KeyboardInterrupt"):
        # Of Ctrl-C while it builds a model, Pydantic makes an error that only quotes it.
        return _interrupted_error()
    return BackfillError(
        text_of(error) if hides_texts() else f"{type(error).__name__}: {error}",
        state=f"{describe_commits()}; lakehouse-backfill status tells where things stand",
        fix="give the command again with --debug, and report what it shows",
    )


def _exit_quietly() -> None:
    # Python flushes stdout again on exit and would complain: let that go nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(_BROKEN_PIPE_EXIT_CODE)


Data = Mapping[str, Any]


def build_envelope(
    command: str, data: Data | None = None, error: BackfillError | None = None
) -> dict[str, Any]:
    """Make the object that `--json` prints; its fields are the CLI contract."""
    shown = dict(data or {})
    warnings = list(shown.pop("warnings", ()))
    return {
        "command": command,
        "ok": error is None,
        "exit_code": error.exit_code if error else 0,
        "data": shown,
        "warnings": warnings,
        "error": None if error is None else error_fields(error),
    }


def error_fields(error: BackfillError) -> dict[str, Any]:
    """Return the fields of an error; one about declarations also lists its faults."""
    fields: dict[str, Any] = {
        "code": error.code,
        "problem": error.problem,
        "state": error.state,
        "fix": error.fix,
    }
    if isinstance(error, ConfigError) or error.faults:
        fields["faults"] = [vars(fault) for fault in error.faults]
    if error.data:
        fields["data"] = error.data
    return fields


class OutputLost(EnvironmentDown):
    """The command has ended, and its result could not be written."""

    code = "output-lost"


@contextmanager
def output_to_stdout() -> Iterator[None]:
    """Translate a closed or full stdout into OutputLost; a reader that went away is no error."""
    if sys.stdout is None:
        raise _output_lost_error("stdout is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python flushes stdout again on exit and would complain: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _output_lost_error(f"stdout cannot be written: {error}") from error


def _output_lost_error(problem: str) -> OutputLost:
    return OutputLost(
        f"the command has ended, but its result is not shown: {problem}",
        state=describe_commits(),
        fix="lakehouse-backfill status, with a stdout that can be written",
    )


def write_json(value: Any, stream: TextIO) -> None:
    """Write one JSON object and a newline; numbers that JSON does not know become text."""
    text = json.dumps(_finite_values(value), ensure_ascii=False, allow_nan=False, default=str)
    stream.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    stream.flush()


def _finite_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
