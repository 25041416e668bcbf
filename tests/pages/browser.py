"""A real headless browser, driven over a pipe: no driver program, no port, no library.

The protocol is Chromium's own (DevTools): JSON messages, each ended by a zero byte, on the file
descriptors 3 (to the browser) and 4 (from it).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 90
MISSING = (
    "the tests of the evidence page need a headless browser, and none is here: install it with "
    "`apt-get install chromium` (or Google Chrome), or name its program in CHROME"
)


class BrowserMissing(Exception):
    """No browser on this machine; the text says what to install."""


def find() -> str:
    """Give the browser's program: CHROME, or the first of the usual names."""
    for name in filter(None, (os.environ.get("CHROME"), *NAMES)):
        found = shutil.which(name)
        if found:
            return found
    raise BrowserMissing(MISSING)


@dataclass
class Browser:
    """One browser process; every page that it opens is a new tab without history."""

    profile: Path
    messages: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0
    _rest: bytes = b""

    def __enter__(self) -> Browser:
        to_child, self._to = os.pipe()
        self._from, from_child = os.pipe()
        # Out of the way of 3 and 4, which the child's copies will take.
        inner = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (to_child, from_child)]

        def settle() -> None:
            os.dup2(inner[0], 3)
            os.dup2(inner[1], 4)

        self._process = subprocess.Popen(
            [
                find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--no-first-run", "--disable-background-networking", "--disable-sync",
                "--disable-component-update", "--disable-default-apps", "--disable-dev-shm-usage",
                # Whatever would leave the page ends in a closed port.
                "--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
                f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank",
            ],
            preexec_fn=settle, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for each in (to_child, from_child, *inner):
            os.close(each)
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and give its result; events on the way are kept in `messages`."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        end = time.monotonic() + TIMEOUT_S
        while True:
            found = self._next(end)
            if found.get("id") != self._count:
                self.messages.append(found)
            elif "error" in found:
                raise AssertionError(f"{method}: {found['error']}")
            else:
                return dict(found["result"])

    def wait(self, method: str, session: str) -> None:
        """Wait until an event of the tab has come."""
        end = time.monotonic() + TIMEOUT_S
        while not any(
            each.get("method") == method and each.get("sessionId") == session
            for each in self.messages
        ):
            self.messages.append(self._next(end))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {TIMEOUT_S} s")
            read = os.read(self._from, 1 << 20)
            if not read:
                raise TimeoutError("the browser has ended")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))

    def open(
        self, page: Path, width: int, height: int, *, dark: bool = False, printing: bool = False
    ) -> Tab:
        """Open a file at a size in CSS pixels, in light or dark mode, for screen or print."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = "print" if printing else "screen"
        tab.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        tab.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("Page.loadEventFired", session)
        return tab


@dataclass
class Tab:
    """One open page."""

    browser: Browser
    session: str

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def evaluate(self, expression: str) -> Any:
        """Give the value of an expression; the page itself may run nothing."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, width: int, height: int) -> bytes:
        """Give a PNG of the upper left part of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """Print on paper as the style sheet says; the tab then shows what paper shows."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(found["data"])

    def events(self, method: str) -> list[dict[str, Any]]:
        """Give the events of one kind that this tab has sent."""
        return [
            each["params"]
            for each in self.browser.messages
            if each.get("method") == method and each.get("sessionId") == self.session
        ]
