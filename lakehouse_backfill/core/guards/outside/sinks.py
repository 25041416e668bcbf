"""Policies of declared sinks: which one holds for a run, and which a sink cannot honour.

The run manifest decides, then the contract for the mode of the run, then the default of the type.
The code of the job decides nothing: it calls `context.sink(name).send(key, payload)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.outside import Sink, SinkPolicy, SinkType
from lakehouse_backfill.domain.manifest import RunManifest, unplannable

_BY_PUBLICATION = ("forbid", "mock")
_BY_MESSAGE = ("allow", "forbid", "mock", "sandbox", "dedupe", "compensate")
#: By type: the policies that can be kept, and why others cannot.
HONOURED: Mapping[SinkType, tuple[tuple[str, ...], str]] = {
    "table": (_BY_PUBLICATION, "rows of a table are those that the transform returns, in a shadow"),
    "materialised_view": (
        _BY_PUBLICATION, "it is made of an accepted version: `view` of a contract, or a hook",
    ),
    "search_index": (_BY_MESSAGE, ""),
    "feature_store": (
        _BY_PUBLICATION, "its rows are a product of its own, whose versions are published",
    ),
    "topic": (_BY_PUBLICATION, "no client for topics is built in; correction events go to a table"),
    "notification": (_BY_MESSAGE, ""),
    "ticket": (_BY_MESSAGE, ""),
    "cache": (_BY_PUBLICATION, "no client for caches is built in; fill it after the publication"),
    "external_api": (_BY_MESSAGE, ""),
}  # fmt: skip
#: Policies that reach the declared sink itself: they need somebody who approves.
REACHING = ("allow", "dedupe", "compensate")
#: What a policy means, as the checklist says it.
MEANINGS: Mapping[SinkPolicy, str] = {
    "allow": "a message is sent once for each key in a run; where the receiver is idempotent, once "
    "over all runs of the product",
    "forbid": "a message fails the run before it is sent",
    "mock": "messages are recorded, answers come from a file",
    "sandbox": "messages go to another address",
    "dedupe": "a message is sent once for each key and contents, over all runs of the product",
    "compensate": "a message is sent once over all runs, under a key of its run, and undone when "
    "that run is void",
}


def effective_policy(manifest: RunManifest, sink: Sink) -> SinkPolicy:
    """Return the policy that holds for a sink in this run."""
    default: SinkPolicy = "forbid"
    if sink.type == "search_index" and sink.sandbox and manifest.run.mode != "live":
        default = "sandbox"  # An index is isolated when it has another address.
    by_mode = sink.policies.get(manifest.run.mode, default)
    return manifest.safety.sinks.get(sink.name, by_mode)


def answer_files(contract: Contract, manifest: RunManifest) -> tuple[str, ...]:
    """Return the files from which mocked sinks answer in this run; they are bound by hash."""
    return tuple(
        sink.answers
        for sink in contract.sinks
        if sink.answers and effective_policy(manifest, sink) == "mock"
    )


def require_honourable_sinks(contract: Contract, manifest: RunManifest) -> None:
    """Raise Unsupported for a policy that the sink cannot honour in this run, naming why."""
    names = [sink.name for sink in contract.sinks]
    unknown = sorted(set(manifest.safety.sinks) - set(names))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if unknown or repeated:
        raise unplannable(
            f"safety.sinks names {', '.join(unknown)}, which the contract does not declare"
            if unknown
            else f"the contract declares the sink {repeated[0]} twice",
            fix=f"declare each sink once under sinks in catalog/contracts/{contract.product}.yaml",
            field="safety.sinks" if unknown else "",
        )
    for sink in contract.sinks:
        policy = effective_policy(manifest, sink)
        problem, fix = _why_not(sink, policy, contract, manifest)
        if problem:
            raise unplannable(
                f"the sink {sink.name} ({sink.type}) cannot honour {policy}: {problem}",
                fix=fix,
                field=f"safety.sinks.{sink.name}" if sink.name in manifest.safety.sinks else "",
            )


def describe_sinks(contract: Contract, manifest: RunManifest) -> str:
    """Return what the run does with each declared sink; empty without sinks."""
    return ", ".join(
        f"{sink.name} ({sink.type}): {policy} ({MEANINGS[policy]})"
        for sink in contract.sinks
        for policy in [effective_policy(manifest, sink)]
    )


def _why_not(
    sink: Sink, policy: SinkPolicy, contract: Contract, manifest: RunManifest
) -> tuple[str, str]:
    """Return why a policy cannot be honoured, and what to write; empty texts when it can."""
    mode, (honoured, why_not) = manifest.run.mode, HONOURED[sink.type]
    is_http, needed = True, {**dict.fromkeys(REACHING, sink.webhook), "sandbox": sink.sandbox}
    if policy in needed:
        is_http = _is_http_address(needed[policy])
    checks = (
        (policy not in honoured, why_not, f"write {' or '.join(honoured)}"),
        (
            policy == "allow" and mode != "live" and not sink.idempotent,
            f"a run in mode {mode} would repeat what was sent before",
            "write dedupe, or declare idempotent: true where the receiver ignores a known key",
        ),
        (
            policy == "compensate" and not _is_http_address(sink.inverse),
            "it has no http(s) address that undoes a message",
            "declare inverse: https://…, or write dedupe",
        ),
        (
            mode == "dry_run" and policy not in _BY_PUBLICATION,
            "a dry run sends nothing",
            "write mock or forbid for it",
        ),
        (policy == "mock" and not sink.answers, "it has no answers", "declare answers: FILE.json"),
        (
            not is_http,
            "it has no http(s) address for it",
            f"declare {'sandbox' if policy == 'sandbox' else 'webhook'}: https://…",
        ),
        (
            policy == "sandbox" and sink.sandbox == sink.webhook,
            "its sandbox is the sink itself",
            "declare another address as sandbox",
        ),
        (
            policy in REACHING and not contract.roles.approve,
            "the contract does not say who may approve it",
            "name the approvers under roles.approve in the contract",
        ),
    )
    return next(((problem, fix) for is_so, problem, fix in checks if is_so), ("", ""))


def _is_http_address(address: str | None) -> bool:
    try:
        parts = urlsplit(address or "")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
