"""Secrets of the environment are hidden from jobs: by name, by declaration, by value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.guard.driver_guard import require_no_secret
from lakehouse_backfill.adapters.spark.guard.environment_gate import SECRETS, KnownSecrets
from lakehouse_backfill.errors import WriteForbidden
from tests.support.spark.guarded import FILE, try_lines

VALUE = "planted-4711"
ENVIRONMENT = {
    "CRM_TOKEN": VALUE,
    "CRM_KEY": f"declared-{VALUE}",
    "CRM_ADDRESS": f"https://crm.example.org/?key={VALUE}",
    "BROKER": f"amqp://someone:pw-{VALUE}@broker",
    "LHB_PLAIN": "plain",
}
#: Each names a hidden variable.
NAMED = (
    "import os; os.environ['CRM_TOKEN']",
    "import os; os.environ.get('CRM_TOKEN')",
    "import os; os.getenv('CRM_TOKEN')",
    "import os; os.environb[b'CRM_TOKEN']",
    "import os; os.getenvb(b'CRM_TOKEN')",
    "from os import getenv as g; g('CRM_' + 'TOKEN')",
    "import os; os.environ.pop('CRM_TOKEN')",
    "import os; os.environ['CRM_KEY']",
    "import os; os.environ['CRM_ADDRESS']",
    "import os; os.environ['BROKER']",
)
#: Each reads all that it can see.
READ = (
    "import os; return dict(os.environ)",
    "import os; return str(os.environ)",
    "import os; return os.environ.copy()",
    "import os; return list(os.environ.items())",
    "import os; return dict(os.environb)",
    "import os; return os.environ._data",
    "import os; return os.environ | {'a': 'b'}",
    "import posix; return posix.environ",
)


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_a_secret_of_the_environment_is_hidden(tmp_path: Path, in_worker: bool) -> None:
    found = try_lines(
        tmp_path, [*NAMED, *READ], in_worker=in_worker, environment=ENVIRONMENT,
        declared=["CRM_KEY"],
    )  # fmt: skip
    named, read = found[: len(NAMED)], found[len(NAMED) :]
    assert [one.sinks for one in named] == [{"secret"}] * len(NAMED)
    assert [one.places[0] for one in named] == [(FILE, n + 1) for n in range(len(NAMED))]
    assert [one.result for one in found if VALUE in one.result] == []
    assert all("plain" in one.result for one in read)


HONEST = (
    "import os; return os.environ['LHB_PLAIN']",
    "import os; return os.environ.get('NONE_SUCH', 'plain')",
    "import os; return os.path.expanduser('~') and 'plain'",
    "import pandas, numpy, logging.config; return 'plain'",
)


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_other_variables_are_read(tmp_path: Path, in_worker: bool) -> None:
    found = try_lines(tmp_path, HONEST, in_worker=in_worker, environment=ENVIRONMENT)
    assert [(one.attempts, one.result) for one in found] == [((), "'plain'")] * len(HONEST)


def test_short_values_and_paths_are_no_secrets_by_value() -> None:
    secrets = KnownSecrets()
    secrets.is_secret_name = lambda name: "TOKEN" in name
    variables = {"TOKEN": "true", "TOKENS": "/home/ana", "HOME": "/home/ana/x", "A": "true"}
    assert secrets.hidden(variables) == {"TOKEN", "TOKENS"}


@pytest.mark.req("E1")
def test_the_value_of_a_secret_is_sent_to_no_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_TOKEN", 'planted-"4711"')
    monkeypatch.setattr(SECRETS, "is_secret_name", lambda name: name == "CRM_TOKEN")
    monkeypatch.setattr(SECRETS, "settings", {"s3.secret-access-key": "from-the-profile"})
    require_no_secret("crm", os.environ.get("HOME", ""))
    for text in (r'{"a": "x planted-\"4711\" y"}', '{"a": "from-the-profile"}'):
        with pytest.raises(WriteForbidden, match=r"to send the value of \S+ to the sink crm"):
            require_no_secret("crm", text)
