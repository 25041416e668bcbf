"""What every test folder shares. Fixtures of one kind of test live in that folder's conftest."""

from __future__ import annotations

pytest_plugins = ["pytester", "tests.req_plugin"]
