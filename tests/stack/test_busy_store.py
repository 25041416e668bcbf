"""A run's whole life on an S3 store that answers 503 to a fifth of all requests."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.chaos.lab import BY
from tests.stack.busy_store import BusyStore
from tests.stack.rest_lab import BACK, StoreLab, require_published, require_rolled_back
from tests.stack.servers import BUCKET, Seaweed


@pytest.mark.req("T8", "T4", "X3")
def test_commands_given_again_converge_where_a_fifth_of_all_requests_is_put_off(
    seaweed: Seaweed, tmp_path: Path
) -> None:
    place = f"s3://{BUCKET}/busy-{uuid.uuid4().hex[:12]}"
    with BusyStore(seaweed, share=0.2) as busy:
        lab = StoreLab(tmp_path, place, seaweed.s3(), {"s3.endpoint": busy.uri})
        lab.make()
        lab.accept()
        lab.repeat("publish", lab.run, *BY)
        require_published(lab)
        lab.repeat(*BACK)
        require_rolled_back(lab)
        assert lab.repeat("recover", "--all", *BY).data["actions"] == []
    assert busy.passed > busy.refused > 50
