"""Results about where partitions come from: what needs restating."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.results.base import Record, Result, optional

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.staleness import ProductStatus


class StaleProduct(Record):
    """How many partitions of a product are in which state; `notes` say what cannot be told.

    `manifest` is the drafted run manifest that repairs those that are stale or missing.
    """

    product: str
    states: Mapping[str, int]
    notes: tuple[str, ...]
    manifest: str | None = optional()


class StalePartition(Record):
    """A partition that is not complete; `because` says in sentences what changed, by `causes`.

    `run_id` is the open run on it, else the run that made it; None: no run did.
    """

    product: str
    partition: str
    state: str
    causes: tuple[str, ...]
    because: tuple[str, ...]
    run_id: str | None


class StaleResult(Result):
    """What of each product is not complete; `nothing_to_do`: nothing is stale or missing."""

    products: tuple[StaleProduct, ...]
    partitions: tuple[StalePartition, ...]
    nothing_to_do: bool
    next_command: str | None = optional()

    @classmethod
    def of(
        cls, found: tuple[ProductStatus, ...], drafts: Mapping[str, str], *, is_drafted: bool
    ) -> StaleResult:
        """Describe the products; `drafts` are the files that were written, by product."""
        to_repair = [one for one in found if one.to_repair and one.repair_of is not None]
        following = None
        if to_repair and not is_drafted:
            following = f"{command_line('stale', to_repair[0].product)} --draft"
        elif drafts:
            following = plan_command(next(iter(drafts.values())))
        return cls(
            products=tuple(
                StaleProduct(
                    product=one.product,
                    states=dict(Counter(each.state for each in one.partitions)),
                    notes=one.notes,
                    manifest=drafts.get(one.product),
                )
                for one in found
            ),
            partitions=tuple(
                StalePartition(
                    product=one.product,
                    partition=each.partition,
                    state=each.state,
                    causes=tuple(dict.fromkeys(cause.kind for cause in each.causes)),
                    because=tuple(cause.text for cause in each.causes),
                    run_id=each.run_id,
                )
                for one in found
                for each in one.partitions
                if each.state != "complete"
            ),
            nothing_to_do=not any(one.to_repair for one in found),
            next_command=following,
        )
