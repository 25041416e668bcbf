"""What became of a commit of Spark that is not in the shadow's log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowWriter
from lakehouse_backfill.errors import BackfillError, CatalogDown, Conflict, OutcomeUnknown

_POST = "org.apache.iceberg.exceptions.RESTException: Error occurred while processing POST request"
_STATE = "org.apache.iceberg.exceptions.CommitStateUnknownException: Service failed: 504"


@pytest.mark.req("X3", "T4")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{_POST}\nCaused by: java.net.SocketTimeoutException: Read timed out", OutcomeUnknown),
        (_STATE, OutcomeUnknown),
        (f"{_POST}\nCaused by: HttpHostConnectException: Connection refused", CatalogDown),
        (_POST.replace("POST", "GET"), CatalogDown),
        ("org.apache.iceberg.exceptions.CommitFailedException: 409", Conflict),
    ],
)
def test_a_commit_without_an_answer_may_land_later(text: str, kind: type[BackfillError]) -> None:
    writer = ShadowWriter(cast("Any", SimpleNamespace(summaries=lambda _: {})))
    with pytest.raises(BackfillError) as raised:
        writer._resolve_outcome("s.shadow", "attempt", RuntimeError(text))
    assert type(raised.value) is kind
