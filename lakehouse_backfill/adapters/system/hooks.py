"""Hook calls: programs run without a shell, webhooks as one POST."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from socket import gaierror
from ssl import SSLCertVerificationError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lakehouse_backfill.domain.guards.outside import Hook, HookCall
from lakehouse_backfill.ports.system import Hooks

#: Characters of a hook's output that are kept.
_MAX_DETAIL_LENGTH = 500


@dataclass(frozen=True)
class LocalHooks(Hooks):
    """Runs programs in the project's folder, in this process's environment."""

    project: Path

    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        """Call the hook with a JSON message and wait for its end; a failure is no error."""
        started = time.monotonic()
        text = json.dumps(message, sort_keys=True)
        may_have_arrived = False
        if hook.command:
            is_ok, detail = self._run_command(hook, text)
        else:
            is_ok, detail, may_have_arrived = _post_webhook(hook, text)
        return HookCall(
            hook=hook.name,
            on=hook.on,
            is_ok=is_ok,
            detail=detail[:_MAX_DETAIL_LENGTH],
            seconds=round(time.monotonic() - started, 3),
            may_have_arrived=may_have_arrived,
        )

    def _run_command(self, hook: Hook, text: str) -> tuple[bool, str]:
        try:
            # The command is part of the contract, which is approved with the plan.
            process = subprocess.run(  # noqa: S603
                list(hook.command),
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=hook.timeout_seconds,
                cwd=self.project,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"no end after {hook.timeout_seconds:g} s; it was killed"
        except OSError as error:
            return False, f"{hook.command[0]} cannot be run: {error.strerror}"
        except ValueError as error:
            return False, f"the command cannot be run: {error}"
        output = (process.stderr if process.returncode else process.stdout).strip()
        return process.returncode == 0, f"exit code {process.returncode}" + (
            f": {output}" if output else ""
        )


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: they would send the token to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


#: A gateway says so, not the receiver, which may have got the message.
_NO_ANSWER_OF_RECEIVER = (502, 504)
#: Nothing was sent: there was no connection.
_NOT_SENT = (ConnectionRefusedError, gaierror, SSLCertVerificationError)


def _post_webhook(hook: Hook, text: str) -> tuple[bool, str, bool]:
    """Return whether the receiver accepted, what it said, and whether it may have accepted."""
    url = hook.webhook or ""
    if not _is_http_url(url):
        return False, "the webhook is no http(s) address", False
    headers = {"Content-Type": "application/json"}
    if hook.token_env is not None:
        token = os.environ.get(hook.token_env)
        if token is None:
            return False, f"the environment variable {hook.token_env} is not set", False
        headers["Authorization"] = f"Bearer {token}"
    request = Request(url, text.encode(), headers, method="POST")  # noqa: S310 (checked above)
    try:
        with build_opener(_NoRedirect).open(request, timeout=hook.timeout_seconds) as answer:
            return True, f"HTTP {answer.status}", False
    except HTTPError as error:
        return False, f"HTTP {error.code}", error.code in _NO_ANSWER_OF_RECEIVER
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        return False, f"no answer: {reason}", not isinstance(reason, _NOT_SENT)
    except HTTPException as error:
        return False, f"no HTTP answer: {type(error).__name__}", True
    except ValueError:
        # The error text contains the header's value, which is the token.
        return False, f"the address, or the text of {hook.token_env}, cannot be sent", False


def _is_http_url(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False
