"""What Great Expectations found, as a check result in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.plain import to_json_value

_SUBJECT_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
_LIMIT_ARGUMENTS = ("value_set", "value", "min_value", "max_value", "regex", "type_", "mostly")
_MAX_EXAMPLES_SHOWN = 5


def to_check_result(
    entry: dict[str, Any], result: dict[str, Any], group: CheckGroup, parameters: Mapping[str, Any]
) -> CheckResult:
    """Give one expectation's outcome; `entry` is what the suite file says."""
    passed = bool(result["success"])
    found = result.get("result") or {}
    return CheckResult(
        name=_check_name(entry),
        group=group,
        passed=passed,
        detail=_exception_text(result)
        or (_pass_detail(found) if passed else _failure_detail(found)),
        observed=to_json_value(_observed_value(found)),
        limit=_declared_limit(entry["kwargs"], parameters),
        blocking=entry.get("severity", "critical") == "critical",
    )


def _check_name(entry: dict[str, Any]) -> str:
    subjects: list[str] = []
    for argument in _SUBJECT_ARGUMENTS:
        value = entry["kwargs"].get(argument, ())
        subjects += [value] if isinstance(value, str) else list(value)
    if not subjects and entry["kwargs"].get("description"):
        # Queries have no column to tell one from another.
        return str(entry["kwargs"]["description"])
    return f"{entry['type']}({', '.join(subjects)})"


def _exception_text(result: dict[str, Any]) -> str | None:
    raised = result.get("exception_info") or {}
    # One entry, or one by metric.
    entries = [raised] if "raised_exception" in raised else list(raised.values())
    messages = [each["exception_message"] for each in entries if each.get("raised_exception")]
    return f"could not be judged: {str(messages[0]).splitlines()[0]}" if messages else None


def _pass_detail(found: dict[str, Any]) -> str:
    rows = found.get("element_count")
    if rows is None:
        observed = found.get("observed_value")
        return "as expected" if observed is None else f"observed {_short_text(observed)}"
    odd = int(found.get("unexpected_count") or 0)
    return f"{rows} rows" + (f", {odd} unexpected ones within `mostly`" if odd else "")


def _failure_detail(found: dict[str, Any]) -> str:
    if "unexpected_count" not in found:
        return f"observed {_short_text(found.get('observed_value'))}"
    count, rows = found["unexpected_count"], found.get("element_count")
    percent = found.get("unexpected_percent")
    share = f" ({percent:.3g} %)" if isinstance(percent, (int, float)) else ""
    shown = [value for value in found.get("partial_unexpected_list") or [] if value is not None]
    distinct = list(dict.fromkeys(_short_text(value) for value in shown))[:_MAX_EXAMPLES_SHOWN]
    examples = f", e.g. {', '.join(distinct)}" if distinct else ""
    return f"{count} of {rows} rows unexpected{share}{examples}"


def _observed_value(found: dict[str, Any]) -> Any:
    if found.get("element_count") == 0:
        return 0
    return found.get("unexpected_count", found.get("observed_value"))


def _declared_limit(kwargs: dict[str, Any], parameters: Mapping[str, Any]) -> Any:
    limits = {name: kwargs[name] for name in _LIMIT_ARGUMENTS if kwargs.get(name) is not None}
    for name, value in limits.items():
        if isinstance(value, dict) and "$PARAMETER" in value:
            given = parameters[value["$PARAMETER"]]
            size = f" ({len(given)} values)" if isinstance(given, (list, tuple, set)) else ""
            limits[name] = f"{value['$PARAMETER']}{size}"
    return to_json_value(limits) or None


def _short_text(value: Any) -> str:
    text = str(to_json_value(value))
    return text if len(text) <= 120 else f"{text[:117]}…"
