"""What a store answered, by the words of the libraries that asked it."""

from __future__ import annotations

import pytest

from lakehouse_backfill.adapters.iceberg.rest.answers import is_denied

FILE = "When reading information for key 'lake/probe_a403b_shadow/data/probe.parquet' in bucket 'b'"


@pytest.mark.req("X12")
@pytest.mark.parametrize(
    "text",
    [
        f"{FILE}: AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
        f"{FILE}: AWS Error UNKNOWN (HTTP status 403) during PutObject operation",
        "s3://b/lake/t: An error occurred (AccessDenied) when calling the PutObject operation",
        "403 Client Error: for url: https://store.example/b/lake",
        "PUT https://store.example/b/lake: HTTP/1.1 403 Forbidden",
        "[AuthorizationPermissionMismatch] 403 This request is not authorized",
    ],
)
def test_a_refusal_of_the_store_is_told_by_its_words(text: str) -> None:
    assert is_denied(OSError(text))
    assert is_denied(PermissionError("no"))


@pytest.mark.req("X12")
@pytest.mark.parametrize(
    "text",
    [
        f"{FILE}: AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7",
        "s3://b/403/probe_403.parquet: AWS Error SLOW_DOWN (HTTP status 503), request 4403-403a",
        "s3://b/forbidden/access_denied.parquet: Timeout was reached",
    ],
)
def test_an_outage_is_no_refusal_whatever_its_files_are_called(text: str) -> None:
    assert not is_denied(OSError(text))
