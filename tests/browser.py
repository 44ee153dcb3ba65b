"""A headless Chromium for tests, driven over its DevTools protocol."""

import itertools
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from marl_verl_report.watch import Server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


class Page:
    """A tab. Messages of its console, exceptions and failed requests are in `problems`."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._numbers, self.problems = socket, itertools.count(1), list[str]()
        self.allowed: tuple[str, ...] = ("file:", "data:", "blob:", "about:")  # beginnings of addresses
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            reply = json.loads(self._socket.recv(timeout=60))
            self._note(reply)
            if reply.get("id") == number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]

    def _note(self, message: dict[str, Any]) -> None:
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(given["args"])[:500])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(given["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(self.allowed):
            self.problems.append(f"request to {given['request']['url']}")

    def open(self, address: str, width: int = 1600, dark: bool = False, ready: bool = True) -> None:
        self.size(width)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=address)
        if ready:
            self.wait("document.documentElement?.dataset.ready === 'true'")

    def size(self, width: int, height: int = 1000) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, json.dumps(found["exceptionDetails"])[:500]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < until, f"not within {seconds} s: {expression}; {self.problems}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def set(self, selector: str, value: str) -> None:
        """Give a control a value, as a user does."""
        given, element = json.dumps(value), f"document.querySelector({json.dumps(selector)})"
        events = "for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true}))"
        self.value(f"(() => {{ const e = {element}; e.value = {given}; {events}; }})()")


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A tab of a new Chromium with its profile in a folder; it ends with the context."""
    from websockets.sync.client import connect

    assert CHROMIUM is not None
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    arguments += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--disable-background-networking"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *arguments, "about:blank"], stdout=log, stderr=log, start_new_session=True
        )
    try:
        port, until = folder / "DevToolsActivePort", time.monotonic() + 60
        while not port.is_file() or "\n" not in port.read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "Chromium has not started within 60 s"
            time.sleep(0.05)
        number, path = port.read_text().split("\n")[:2]
        with connect(f"ws://127.0.0.1:{number}{path}", max_size=None) as browser:
            browser.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            while (reply := json.loads(browser.recv(timeout=60))).get("id") != 1:
                pass
            target = reply["result"]["targetId"]
            with connect(f"ws://127.0.0.1:{number}/devtools/page/{target}", max_size=None) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def watched(page: Page, folder: Path, ready: str) -> Iterator[None]:
    """A tab that shows `marl-verl watch` of a run, once `ready` is true."""
    with Server(folder) as server:
        for work in (server.serve_forever, server.play_requests):
            threading.Thread(target=work, daemon=True).start()
        page.allowed = (*page.allowed, server.address)
        page.open(server.address)
        page.wait(ready)
        yield
        page.open("about:blank", ready=False)
        server.shutdown()
