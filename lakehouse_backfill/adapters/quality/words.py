"""What Great Expectations found, as a check result in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.plain import plain_value

_SUBJECTS = ("column", "column_A", "column_B", "column_list")
_LIMITS = ("value_set", "value", "min_value", "max_value", "regex", "type_", "mostly")
_SHOWN = 5


def check_of(
    entry: dict[str, Any], result: dict[str, Any], group: CheckGroup, parameters: Mapping[str, Any]
) -> CheckResult:
    """Give one expectation's outcome; `entry` is what the suite file says."""
    passed = bool(result["success"])
    found = result.get("result") or {}
    return CheckResult(
        name=_name(entry),
        group=group,
        passed=passed,
        detail=_error(result) or (_agreement(found) if passed else _complaint(found)),
        observed=plain_value(_observed(found)),
        limit=_limit(entry["kwargs"], parameters),
        blocking=entry.get("severity", "critical") == "critical",
    )


def _name(entry: dict[str, Any]) -> str:
    subjects: list[str] = []
    for argument in _SUBJECTS:
        value = entry["kwargs"].get(argument, ())
        subjects += [value] if isinstance(value, str) else list(value)
    if not subjects and entry["kwargs"].get("description"):
        # Queries have no column to tell one from another.
        return str(entry["kwargs"]["description"])
    return f"{entry['type']}({', '.join(subjects)})"


def _error(result: dict[str, Any]) -> str | None:
    raised = result.get("exception_info") or {}
    # One entry, or one by metric.
    entries = [raised] if "raised_exception" in raised else list(raised.values())
    messages = [each["exception_message"] for each in entries if each.get("raised_exception")]
    return f"could not be judged: {str(messages[0]).splitlines()[0]}" if messages else None


def _agreement(found: dict[str, Any]) -> str:
    rows = found.get("element_count")
    if rows is None:
        observed = found.get("observed_value")
        return "as expected" if observed is None else f"observed {_brief(observed)}"
    odd = int(found.get("unexpected_count") or 0)
    return f"{rows} rows" + (f", {odd} unexpected ones within `mostly`" if odd else "")


def _complaint(found: dict[str, Any]) -> str:
    if "unexpected_count" not in found:
        return f"observed {_brief(found.get('observed_value'))}"
    count, rows = found["unexpected_count"], found.get("element_count")
    percent = found.get("unexpected_percent")
    share = f" ({percent:.3g} %)" if isinstance(percent, (int, float)) else ""
    shown = [value for value in found.get("partial_unexpected_list") or [] if value is not None]
    distinct = list(dict.fromkeys(_brief(value) for value in shown))[:_SHOWN]
    examples = f", e.g. {', '.join(distinct)}" if distinct else ""
    return f"{count} of {rows} rows unexpected{share}{examples}"


def _observed(found: dict[str, Any]) -> Any:
    if found.get("element_count") == 0:
        return 0
    return found.get("unexpected_count", found.get("observed_value"))


def _limit(kwargs: dict[str, Any], parameters: Mapping[str, Any]) -> Any:
    limits = {name: kwargs[name] for name in _LIMITS if kwargs.get(name) is not None}
    for name, value in limits.items():
        if isinstance(value, dict) and "$PARAMETER" in value:
            given = parameters[value["$PARAMETER"]]
            size = f" ({len(given)} values)" if isinstance(given, (list, tuple, set)) else ""
            limits[name] = f"{value['$PARAMETER']}{size}"
    return plain_value(limits) or None


def _brief(value: Any) -> str:
    text = str(plain_value(value))
    return text if len(text) <= 120 else f"{text[:117]}…"
