"""A headless Chromium, driven by the W3C's WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

TAB, ENTER = "\ue004", "\ue007"
PACKAGES = ("chromium", "chromium-driver")
PROGRAMS = ("chromium", "google-chrome"), ("chromedriver",)
# A wheel with axe-core 4.12.1 (https://github.com/dequelabs/axe-core), which PyPI has not by itself.
_AXE = "axe-playwright-python==0.1.8"
_AXE_HASH = "sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element
# What only Chromium has is asked of it by its own commands:
# https://chromedevtools.github.io/devtools-protocol/tot/Emulation/
_CDP = "goog/cdp/execute"


class Browser:
    """A window of a browser; `address` is that of a session of its driver."""

    def __init__(self, address: str, session: requests.Session) -> None:
        self._address = address
        self._session = session

    def _ask(self, path: str, **values: Any) -> Any:
        return post(self._session, f"{self._address}/{path}", values)

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts have run."""
        self._ask("url", url=url)

    def run(self, script: str, *values: Any) -> Any:
        """The result of a script in the page, whose `arguments` are values of JSON."""
        return self._ask("execute/sync", script=script, args=list(values))

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that fits; "" for none."""
        content = self.run(
            "return document.querySelector(arguments[0])?.innerText.trim() ?? ''", selector
        )
        return str(content)

    def type(self, selector: str, text: str) -> None:
        """Type into an element, as a user does; a choice takes the option that begins so."""
        element = self._ask("element", using="css selector", value=selector)
        self._ask(f"element/{element[_ELEMENT]}/value", text=text)

    def press(self, keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    @property
    def focus(self) -> str:
        """The id of the element that has the focus, else its text."""
        label = self.run("const e = document.activeElement; return e.id || e.innerText")
        return str(label)

    def tab_to(self, name: str, most: int = 40) -> None:
        """Press Tab until an element has the focus; fails if none of the next ones is it."""
        passed = []
        for _ in range(most):
            self.press(TAB)
            passed.append(self.focus)
            if passed[-1] == name:
                return
        raise AssertionError(f"Tab does not lead to {name}, but to {passed}")

    def violations(self, axe: str) -> list[list[str]]:
        """What axe-core finds wrong on the page: rule, help and the first element of each."""
        self.run(f"{axe}; window.axe = axe;")
        script = """
        const [done] = arguments;
        axe.run().then((found) =>
          done(found.violations.map((v) => [v.id, v.help, v.nodes[0].html])));
        """
        rules: list[list[str]] = self._ask("execute/async", script=script, args=[])
        return rules

    def scripts(self, *, run: bool) -> None:
        """Let pages that are opened from now on run their scripts, or not."""
        self._ask(_CDP, cmd="Emulation.setScriptExecutionDisabled", params={"value": not run})

    def show(self, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Give the window a size in CSS pixels, and the user a colour scheme."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask(_CDP, cmd="Emulation.setDeviceMetricsOverride", params=screen)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._ask(_CDP, cmd="Emulation.setEmulatedMedia", params={"features": [feature]})

    def messages(self) -> list[str]:
        """What the page has written to the console since the last call, its errors included."""
        return [entry["message"] for entry in self._ask("se/log", type="browser")]

    def requested(self) -> list[str]:
        """The URLs that were asked for since the last call."""
        events = [
            json.loads(entry["message"])["message"]
            for entry in self._ask("se/log", type="performance")
        ]
        sent = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]


def post(session: requests.Session, url: str, values: Mapping[str, Any]) -> Any:
    """The answer of a driver. Raises AssertionError with what it says is wrong."""
    return _value(session.post(url, json=values, timeout=120))


def _value(answer: requests.Response) -> Any:
    value = answer.json()["value"]
    assert answer.ok, f"{value['error']}: {value['message']}"
    return value


def axe_core(folder: Path) -> str:
    """The script of axe-core, from a wheel that pip leaves in a folder."""
    requirements = folder / "axe.txt"
    requirements.write_text(f"{_AXE} --hash={_AXE_HASH}\n")
    words = ("--quiet", "--no-deps", "--require-hashes", "--dest", folder, "-r", requirements)
    subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return files.read("axe_playwright_python/axe.min.js").decode()


def programs() -> tuple[Path, ...]:
    """A browser and its driver; () where one of them is missing."""
    paths = [
        next(filter(None, (shutil.which(name, path=_path()) for name in names)), None)
        for names in PROGRAMS
    ]
    return tuple(Path(path) for path in paths if path) if all(paths) else ()


@contextmanager
def browser(paths: Sequence[Path]) -> Iterator[Browser]:
    """A browser for as long as the block lasts; `paths` is what `programs` gave."""
    chromium, chromedriver = paths
    command = [str(chromedriver), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            lines = (re.search(r"started successfully on port (\d+)", x) for x in driver.stdout)
            port = next(filter(None, lines))[1]
            with requests.Session() as session:
                session.trust_env = False  # a proxy does not lead to this machine
                yield from _window(session, f"http://127.0.0.1:{port}/session", chromium)
        finally:
            driver.terminate()


def _window(session: requests.Session, address: str, chromium: Path) -> Iterator[Browser]:
    # Chromium's own sandbox does not run as root.
    words = ["--headless=new", "--hide-scrollbars", *(["--no-sandbox"] if not os.geteuid() else [])]
    # /dev/shm of a container is small.
    options = {"binary": str(chromium), "args": [*words, "--disable-dev-shm-usage"]}
    capabilities = {
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    values = {"capabilities": {"alwaysMatch": capabilities}}
    window = f"{address}/{post(session, address, values)['sessionId']}"
    try:
        yield Browser(window, session)
    finally:
        session.delete(window, timeout=120)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/bin"
