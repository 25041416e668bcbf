"""What a rehearsal does as the real run would, and what it cannot: pure decisions.

A rehearsal has the manifest, code, checks and pinned snapshots of the real run. Its owner's hooks
are not called, and messages of its code reach no real receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakehouse_backfill.core.guards.outside.sinks import REACHING, effective_policy
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.domain.contract import (
    FOUR_EYES_ENVIRONMENTS,
    Contract,
    Profile,
    Roles,
    Switch,
)
from lakehouse_backfill.domain.guards.outside import Sink, SinkPolicy
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import ConfigError, Conflict, NotAllowed


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in the rehearsal; `why` says what that leaves unproven."""

    what: str
    real: str
    rehearsal: str
    why: str


def require_possible_place(real: Profile, place: Profile, name: str) -> None:
    """Raise unless the profile `name` can hold a rehearsal: of another lake, and not of prod.

    The catalogs need different names: signed statements and marks of commits hold the name, so
    none of a rehearsal's counts for the real table. Raises NotAllowed, ConfigError.
    """
    if place.environment in FOUR_EYES_ENVIRONMENTS:
        raise NotAllowed(
            f"profile {name} is of {place.environment}: a rehearsal publishes, and may not do so "
            "there",
            state="nothing was copied or registered",
            fix=f"name a profile with environment: dev; {_HOW_TO_DECLARE}",
        )
    if real.catalog.get("name") == place.catalog.get("name"):
        raise ConfigError(
            f"the catalog of profile {name} has the name of the real one, "
            f"{real.catalog.get('name')}",
            state="nothing was copied or registered",
            fix=f"name a profile of another lake, whose catalog has another name; "
            f"{_HOW_TO_DECLARE}",
        )


_HOW_TO_DECLARE = "docs/rollout.md has a profile to copy"


def require_publishable(plan: Plan) -> None:
    """Raise ConfigError for a run that is never published: there is nothing to rehearse."""
    if publish_modes.is_never_published(plan):
        raise ConfigError(
            f"{plan.manifest_file} is never published, so no publication can be rehearsed",
            state="nothing was copied or registered",
            fix="give `plan`, `approve` and `run` for it; they change no table",
        )


def rehearsal_manifest(contract: Contract, manifest: RunManifest) -> RunManifest:
    """Return the manifest with no message to a real receiver, and no wait for a publish window.

    Raises ConfigError for a sink that would be reached and has neither sandbox nor answers.
    """
    policies = {sink.name: _harmless(contract, sink, manifest) for sink in contract.sinks}
    safety = manifest.safety.model_copy(
        update={"sinks": {**manifest.safety.sinks, **policies}, "publish_window": None}
    )
    return manifest.model_copy(update={"safety": safety})


def _harmless(contract: Contract, sink: Sink, manifest: RunManifest) -> SinkPolicy:
    policy = effective_policy(manifest, sink)
    if policy not in REACHING:
        return policy
    if sink.sandbox and sink.sandbox != sink.webhook:
        return "sandbox"
    if sink.answers:
        return "mock"
    raise ConfigError(
        f"the run sends messages to {sink.name} ({policy}), and that sink declares nothing that a "
        "rehearsal could use instead",
        state="nothing was copied or registered",
        fix=f"declare sandbox: or answers: for {sink.name} in catalog/contracts/"
        f"{contract.product}.yaml",
    )


def as_rehearsal(of_hash: str) -> Callable[[ResolvedManifest], ResolvedManifest]:
    """Return what makes a resolved manifest that of a rehearsal of the run with `of_hash`.

    Hooks are left out. One person decides on all: roles and four eyes are left out too.
    """

    def amend(resolved: ResolvedManifest) -> ResolvedManifest:
        without = {"hooks": (), "roles": Roles(), "four_eyes": False}
        contract = resolved.contract.model_copy(update=without)
        return resolved.model_copy(update={"contract": contract, "rehearses": of_hash})

    return amend


def require_same_intent(real: ResolvedManifest, found: ResolvedManifest) -> None:
    """Raise Conflict when partitions, chunks, code or snapshots are not those of the real run."""
    parts = {
        "partitions": (real.scope, found.scope),
        "chunks": (real.chunks, found.chunks),
        "code": (real.code_hash, found.code_hash),
        "the target's snapshot": (real.target.snapshot_id, found.target.snapshot_id),
        **{
            f"snapshot of {pin.name}": (pin.snapshot_id, other.snapshot_id)
            for pin, other in zip(real.sources, found.sources, strict=True)
        },
    }
    wrong = [name for name, (wanted, planned) in parts.items() if wanted != planned]
    if wrong:
        raise Conflict(
            f"the rehearsal would not be of this run: other {', '.join(wrong)}",
            state="no run was registered; the copies in the rehearsal's lake are kept",
            fix="give the same command again; if a live table moved, it is copied again. For a "
            "pinned product that was rehearsed there before, use a new, empty catalog",
        )


def tables_to_copy(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return the tables that the run reads or changes, and that exist, each once."""
    target = (resolved.target.table,) if resolved.target.uuid is not None else ()
    sources = (pin.table for pin in resolved.sources)
    tombstones = (pin.table for pin in resolved.tombstones)
    return tuple(dict.fromkeys((*target, *sources, *tombstones)))


def find_differences(
    real: tuple[Profile, Plan], rehearsed: tuple[Profile, Plan]
) -> tuple[Difference, ...]:
    """Return what the real place has otherwise, from both profiles and both plans."""
    return tuple(_differences(real, rehearsed))


def _differences(
    real: tuple[Profile, Plan], rehearsed: tuple[Profile, Plan]
) -> Iterator[Difference]:
    (profile, plan), (place, other) = real, rehearsed
    contract = plan.resolved.contract
    facts = (
        ("environment", profile.environment, place.environment, "its rules were not applied"),
        ("catalog", _kind(profile), _kind(place), "how that catalog commits was not tried"),
        ("store", _store(profile), _store(place), "access to write there was not tried"),
        ("engine", _engine(profile), _engine(place), "duration and memory may differ"),
        ("write path", plan.way.way if plan.way else "-", other.way.way if other.way else "-",
         "another program commits to the table"),
    )  # fmt: skip
    yield from (Difference(*fact) for fact in facts if fact[1] != fact[2])
    named = [
        f"{role}: {', '.join(people)}"
        for role in ("approve", "accept", "publish", "rollback")
        if (people := contract.holders(role, profile.environment))
    ]
    if named:
        text = "; ".join(named)
        yield Difference("roles", text, "one person", "whether they may decide was not asked")
    if roles.is_four_eyes_required(plan, profile.environment, contract):
        yield Difference("four eyes", "two people", "one person", "the second was not asked")
    if profile.requires_signatures:
        has = "required" if place.requires_signatures else "optional"
        yield Difference("signatures", "required", has, "keys of the real run were not used")
    if contract.hooks:
        text = ", ".join(f"{hook.name} ({hook.on})" for hook in contract.hooks)
        yield Difference("hooks", text, "not called", "what they do, and their failure, is open")
    yield from _sink_differences(plan, other)
    if plan.resolved.manifest.safety.publish_window is not None:
        yield Difference("publish window", "declared", "none", "it may be closed then")
    switches: tuple[Switch, ...] = ("publish", "hooks")
    off = [name for name in switches if not profile.is_on(name, plan.product)]
    if off:
        yield Difference("switches", f"off: {', '.join(off)}", "on", "it is refused there now")
    if profile.pilot is not None and plan.product not in profile.pilot:
        yield Difference("pilot list", "without this product", "-", "it is refused there now")
    yield Difference(
        "live writers", "may commit meanwhile", "none", "conflicts with them were not tried"
    )


def _sink_differences(plan: Plan, other: Plan) -> Iterator[Difference]:
    for sink in plan.resolved.contract.sinks:
        wanted, kept = (effective_policy(one.resolved.manifest, sink) for one in (plan, other))
        if wanted != kept:
            yield Difference(f"sink {sink.name}", wanted, kept, "its receiver got no message")


def _kind(profile: Profile) -> str:
    """Return the kind of a catalog; no address, as that may hold a password."""
    kind, uri = profile.catalog.get("type", ""), profile.catalog.get("uri", "")
    scheme = uri.partition("://")[0]
    return " ".join(text for text in (kind, scheme if kind == "sql" else "") if text) or "-"


def _store(profile: Profile) -> str:
    return profile.catalog.get("warehouse", "").partition(":")[0] or "-"


def _engine(profile: Profile) -> str:
    spark = profile.spark
    if "spark.remote" in spark:
        return "Spark Connect"
    return spark.get("spark.master", "local").partition("://")[0]
