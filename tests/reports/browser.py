"""A real Chromium without a window, driven through the two pipes of its DevTools protocol."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
PATIENCE = 60.0


def path() -> str | None:
    """The binary: that of the environment variable STRUCTGRAD_BROWSER, or one of the usual names."""
    return os.environ.get("STRUCTGRAD_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. ``complaints`` are errors and warnings of the console, ``requests`` all addresses that were asked for."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._buffer, self._count = to, back, b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its answer; events in between are recorded."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer.get("result", {})
        return found

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, fragment: str = "") -> None:
        """Load a page from disk, with no complaints and requests but its own."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[theme])
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.as_uri() + fragment)
        self.until("document.readyState === 'complete' && location.protocol === 'file:' && document.documentElement !== null")

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']['exception'].get('description')}")
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"{script} never came true"
            time.sleep(0.02)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], PATIENCE)
            received = os.read(self._back, 1 << 16) if ready else b""
            if not received:
                raise AssertionError("the browser does not answer")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert")):
            self.complaints.append(json.dumps(told))


@contextmanager
def browser(binary: str, profile: Path) -> Iterator[Browser]:
    """Start one, and stop it. It reads commands from its descriptor 3 and answers on 4."""
    read_commands, to = os.pipe()
    back, write_answers = os.pipe()
    options = f"--headless --no-sandbox --remote-debugging-pipe {' '.join(QUIET)} --user-data-dir='{profile}'"
    shell = f"exec {binary} {options} about:blank 3<&{read_commands} 4>&{write_answers}"
    process = subprocess.Popen(
        ["bash", "-c", shell], pass_fds=(read_commands, write_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Browser(to, back)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
        os.close(to)
        os.close(back)
