"""A headless Chromium driven over its debugging pipe: no package, only file descriptors 3 and 4 and JSON."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-extensions",
)


def chromium() -> str | None:
    """Return the path of an installed Chromium."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless browser, its console messages, and every address that it asked for."""

    def __init__(self, program: str) -> None:
        """Start it with a profile that is thrown away."""
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        here, theirs = os.pipe(), os.pipe()  # theirs: what it writes to 4; here: what it reads from 3
        command = [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"]

        def wire() -> None:
            os.dup2(os.dup(here[0]), 30)
            os.dup2(os.dup(theirs[1]), 31)
            os.dup2(30, 3)
            os.dup2(31, 4)

        self.process = subprocess.Popen(
            command,
            preexec_fn=wire,  # noqa: PLW1509 - the pipe's descriptors have fixed numbers, and no thread runs here
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(here[0])
        os.close(theirs[1])
        self.out, self.inside = os.fdopen(here[1], "wb"), os.fdopen(theirs[0], "rb")
        self.number, self.buffer = 0, b""
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what arrives meanwhile is noted."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        self.out.write(json.dumps(message).encode() + b"\0")
        self.out.flush()
        while True:
            answer = self.next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the page."""
        return self.call(method, self.session, **parameters)

    def next(self) -> dict[str, Any]:
        """Return the next message, its console text and requests noted."""
        while b"\0" not in self.buffer:
            data = os.read(self.inside.fileno(), 1 << 16)
            assert data, "the browser has gone"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        given = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.said.append(str(given["args"]))
        if message.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(given["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded":
            self.said.append(given["entry"]["text"])
        if message.get("method") == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        return message

    def show(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Open a file in a window so wide, and wait until it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=path.as_uri())
        while self.next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write a picture of what is shown."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the process that was started."""
        self.process.terminate()
        self.process.wait(timeout=20)
        self.out.close()
        self.inside.close()
        self.profile.cleanup()
