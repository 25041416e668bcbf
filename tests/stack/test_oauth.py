"""OAuth2 client credentials: commands log in with them, and tell them to nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.lab import BY, SCOPE
from tests.stack.catalog_rules import ALWAYS
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import TOKENS, Fault
from tests.stack.rest_lab import BACK, RestLab, require_no_secret, require_published
from tests.stack.servers import Rest

SECRET = "hunter2-of-today-5a1f83c0"
WRONG = "hunter3-of-yesterday-93bc6f12"
MISNAMED = "granted-by-another-name-77dec4a9"
#: What the catalog answers, from then on, and with which code commands end.
FAILURES = {
    "the login is refused": Fault("POST", TOKENS, status=401),
    "the login fails": Fault("POST", TOKENS, status=500),
    "the login is cut off": Fault("POST", TOKENS, status=None),
    "the login is busy": Fault("POST", TOKENS, status=503, headers={"Retry-After": "0"}),
    "the token has another name": Fault(
        "POST", TOKENS, status=200, answer=f'{{"accessToken": "{MISNAMED}"}}'
    ),
    "the answer quotes the request": Fault(
        "POST", TOKENS, status=400,
        answer=f'{{"error": "invalid_request", "error_description": "client_secret={SECRET}"}}',
    ),
    "the refusal quotes the request": Fault(
        "POST", TOKENS, status=403,
        answer=f'{{"error": {{"message": "{SECRET}", "type": "F", "code": 403}}}}',
    ),
    "the answer is a page": Fault("POST", TOKENS, status=502, answer=f"<p>{SECRET}</p>"),
    "each token is refused": Fault("GET|POST", "/namespaces", status=401),
    "the catalog fails": Fault("GET|POST", "/namespaces", status=500),
    "the catalog is cut off": Fault("GET|POST", "/namespaces", status=None),
}  # fmt: skip


@pytest.fixture
def lab(catalogs: Catalogs, rest: Rest, tmp_path: Path) -> RestLab:
    uri = catalogs.behind([])["uri"]
    name = uri.rpartition("/")[2]
    direct = {"uri": f"{rest.uri}/{name}"}
    made = RestLab(tmp_path, uri, direct, rest.folder / name / "rest.db", "clone")
    made.make()
    catalogs.proxy.clients = {"robot": SECRET}
    made.log_in(**{"credential": f"robot:{SECRET}", "oauth2-server-uri": uri + TOKENS})
    return made


@pytest.mark.req("X1")
def test_no_secret_of_a_login_is_in_what_commands_write_whatever_fails(
    lab: RestLab, catalogs: Catalogs
) -> None:
    plan = lab.must("--debug", "plan", lab.manifest("a.yaml", SCOPE[0], "2024-01-05"), *BY)
    lab.run = plan.data["run_id"]
    lab.must("approve", lab.run, *BY)
    for name, fault in FAILURES.items():
        fault.times = ALWAYS
        catalogs.proxy.faults = [fault]
        ended = lab.do("--debug", "stage", lab.run, *BY)
        assert (ended.code in (2, 4, 5, 6), fault.met > 0) == (True, True), (name, ended)
    catalogs.proxy.faults = []
    right = dict(lab.login)
    lab.log_in(**{**right, "credential": f"robot:{WRONG}"})
    assert lab.do("--debug", "stage", lab.run, *BY).code == 6
    lab.log_in(**right)
    for verb in ("stage", "validate", "accept", "publish", "evidence"):
        lab.must("--debug", verb, lab.run, *(() if verb == "evidence" else BY))
    require_published(lab)
    lab.must("--debug", *BACK)
    assert len(catalogs.proxy.issued) > len(FAILURES)
    secrets = (SECRET, WRONG, MISNAMED, *catalogs.proxy.issued)
    # Readers of JSON shorten what they quote.
    require_no_secret(lab, [part for one in secrets for part in (one[:16], one[-8:])])
