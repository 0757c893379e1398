"""The site in a real browser, from a file: it answers as `pick` does. No engine is needed."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import ENTER, PACKAGES, Browser, browser, programs, screenshots
from tests.integration.support import as_root, invoke
from torch_images.config.types import Config
from torch_images.publish import answers

LARGEST = 150_000  # bytes of a picture in the docs
INSTALL = ("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *PACKAGES)
QUESTIONS = ("gpu", "driver", "torch", "base", "variant", "platform")
ANSWER = """
const data = JSON.parse(document.getElementById("data").textContent);
return arguments[0].map((asked) => lookUp(data.answers, asked));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command that users type."""
    folder = tmp_path_factory.mktemp("site") / "of images"
    done = invoke("site", "--output", str(folder), "--commit", "c0ffee1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert str(folder / "index.html") in done.stdout
    return folder


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A browser; Debian's Chromium is installed where there is none."""
    if not programs():
        environment = ("env", "DEBIAN_FRONTEND=noninteractive")
        if subprocess.run(as_root(*environment, *INSTALL), check=False).returncode:
            subprocess.run(as_root("apt-get", "-qq", "update"), check=True)
            subprocess.run(as_root(*environment, *INSTALL), check=True)
    with browser(programs()) as opened:
        yield opened


@pytest.fixture
def page(site: Path, window: Browser) -> Browser:
    """The first page, as if it was never opened before. Afterwards nothing was wrong on it."""
    window.show(width=1000)
    window.open("about:blank")
    window.messages()
    window.requested()
    window.open((site / "index.html").as_uri())
    assert window.messages() == []
    return window


def picked(**asked: str) -> dict[str, Any]:
    """What the command says."""
    words = [word for name, value in asked.items() if value for word in (f"--{name}", value)]
    done = invoke("pick", *words, "--json")
    if done.returncode:
        return {"problem": done.stderr.removeprefix("error: ").strip()}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    "asked",
    [
        {"gpu": "RTX 5090", "driver": "570.133"},
        {"gpu": "H100", "driver": "550"},
        {"gpu": "A100", "driver": "580.95.05", "torch": "2.13.0", "base": "trixie"},
        {"gpu": "H200", "driver": "595", "variant": "vllm"},
        {"gpu": "RTX 4090", "driver": "470.82"},
        {"gpu": "RTX 5090", "driver": "580", "variant": "recsys"},
        {"gpu": "GH200", "driver": "580"},
        {"gpu": "H100", "driver": "580", "platform": "linux/arm64"},
        {"gpu": "GH200", "driver": "580", "platform": "linux/amd64"},
        {"gpu": "GB10", "driver": "580.95.05", "base": "trixie"},
        {"gpu": "H100", "driver": "580", "variant": "pod", "platform": "linux/arm64"},
        {"gpu": "T4", "driver": "580"},
    ],
    ids=lambda asked: " ".join(asked.values()),
)
def test_a_choice_is_answered_as_by_the_command(page: Browser, asked: dict[str, str]) -> None:
    for name, value in asked.items():
        if name == "driver":
            page.type("#driver", value)
        else:  # as a click on an option does
            page.run(
                "const field = document.getElementById(arguments[0]);"
                "field.value = arguments[1]; field.dispatchEvent(new Event('input', {bubbles: true}))",
                *(name, value),
            )
            assert page.run("return document.getElementById(arguments[0]).value", name) == value
    wanted = picked(**asked)
    shown = page.text("#answer")
    if "problem" in wanted:
        assert page.text("#answer h2") == "No image"
        problem = page.text("#problem")
        assert wanted["problem"].startswith(problem)
        assert len(problem) > 30
    else:
        assert page.text("#image") == wanted["image"]
        assert page.text("#run") == wanted["run"]
        assert page.text("#build").splitlines() == [wanted["build"], wanted["local"]]
        assert page.text("#host") == f"platform: {wanted['platform']}"
        assert page.text("#why").splitlines() == wanted["why"]
        for other in wanted["others"]:
            word = "or" if other["works"] else "not"
            assert f"{word} {other['image']}: {other['why']} ({other['id']})" in shown
    assert page.messages() == []


def test_every_cell_is_that_of_the_table(page: Browser, site: Path, config: Config) -> None:
    """What the browser makes of the table is what `look_up` does, which is what `pick` says."""
    text = page.run("return document.getElementById('data').textContent")
    table = json.loads(text)["answers"]
    marks = [m for m in table["drivers"]["marks"] if m != "0.0"]
    drivers = ["100.1", *marks, *(f"{m}1" for m in marks), *table["drivers"]["branches"], "999"]
    gpus = [entry["asked"] for entry in table["gpus"]]
    one_of_each = [next(iter((*a.gpus, *a.geforce))) for a in config.architectures]
    axes = [("", *config.names(axis)) for axis in ("torch", "base", "variant")]
    platforms = ("", *config.names("platform"))
    cells = [
        *(
            (gpu, driver, "", "", "", platform)
            for gpu, driver, platform in itertools.product(gpus, drivers, platforms)
        ),
        *((gpu, "600.1", *rest) for gpu, *rest in itertools.product(one_of_each, *axes, platforms)),
    ]
    asked = [dict(zip(QUESTIONS, cell, strict=True)) for cell in cells]
    found = page.run(ANSWER, asked)
    assert len(found) == len(asked) > 20_000
    for question, answer in zip(asked, found, strict=True):
        assert answer == answers.look_up(table, **question), question


def test_the_address_asks_a_question(page: Browser, site: Path) -> None:
    page.open((site / "index.html").as_uri() + "#gpu=H100&driver=550&variant=%3Cimg%3E")
    assert page.text("#image") == picked(gpu="H100", driver="550")["image"]
    assert "gpu=H100&driver=550" in page.run("return location.hash")


def test_a_driver_that_is_none_is_said(page: Browser) -> None:
    page.run("document.getElementById('gpu').value = 'H100'")
    page.type("#driver", "<img src=x onerror=alert(1)>")
    assert page.text("#driver-problem").startswith("Give it as nvidia-smi does")
    assert page.text("#answer") == "Choose a GPU and give its driver."
    assert page.run("return document.images.length") == 0


def test_a_search_narrows_the_list(page: Browser) -> None:
    rows = "return [...document.querySelectorAll('#images tbody tr')].filter((r) => r.checkVisibility()).map((r) => r.querySelector('a').textContent)"
    every = page.run(rows)
    assert page.text("#count") == f"{len(every)} of {len(every)} images"
    page.type("#search", "h100 VLLM")
    found = page.run(rows)
    assert found == [
        name for name in every if name.endswith("-vllm") and ("-sm90-" in name or "-all-" in name)
    ]
    assert page.text("#count") == f"{len(found)} of {len(every)} images"
    page.type("#filters [data-axis=torch]", "2.13.0")
    assert {name.split("-")[2] for name in page.run(rows)} == {"torch2.13.0"}
    page.run("document.getElementById('proved').click()")
    state = "return [...document.querySelectorAll('#images tbody tr')].filter((r) => r.checkVisibility()).every((r) => r.textContent.includes('proved on'))"
    assert page.run(state)
    page.type("#search", " nothing")
    assert page.text("#count") == f"0 of {len(every)} images"


def test_all_of_it_works_by_keyboard(page: Browser) -> None:
    """From the first Tab to the page of the image."""
    page.tab_to("Skip to the content", most=1)
    page.press(ENTER)
    page.tab_to("gpu", most=1)
    page.press("H100")
    page.tab_to("driver", most=1)
    page.press("550")
    wanted = picked(gpu="H100", driver="550")
    assert page.text("#run") == wanted["run"]
    page.tab_to(wanted["id"])
    page.press(ENTER)
    assert page.text("h1") == wanted["id"]
    assert page.messages() == []


@pytest.mark.parametrize("width", [320, 700, 1400])
@pytest.mark.parametrize("name", ["index", "image"])
def test_no_page_is_wider_than_its_window(page: Browser, site: Path, width: int, name: str) -> None:
    page.show(width=width)
    question = "#gpu=H100&driver=550"
    page.open("about:blank")
    image = max((site / "images").iterdir(), key=lambda path: path.stat().st_size)
    page.open(image.as_uri() if name == "image" else (site / "index.html").as_uri() + question)
    assert page.run("return innerWidth") == width
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_light_and_dark_can_both_be_read(page: Browser) -> None:
    """Text has a contrast of 7 to its ground, what is quieter one of 4.5 (WCAG 2.2, 1.4.3)."""
    script = """
    const light = (colour) => {
      const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((p) => p / 255);
      const [r, g, b] = parts.map((p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    const contrast = (selector) => {
      const other = light(getComputedStyle(document.querySelector(selector)).color);
      return (Math.max(other, ground) + 0.05) / (Math.min(other, ground) + 0.05);
    };
    return [ground, contrast("body"), contrast(".hint"), contrast("a[href]"), contrast(".problem")];
    """
    grounds = []
    for scheme in ("light", "dark"):
        page.show(width=1000, scheme=scheme)
        ground, text, *others = page.run(script)
        grounds.append(ground)
        assert text > 7
        assert min(others) > 4.5
    assert grounds[0] > 0.9
    assert grounds[1] < 0.05


def test_it_asks_nothing_of_any_server(page: Browser, site: Path) -> None:
    asked = page.requested()
    assert {Path(url).name for url in asked} == {"index.html", "answer.js", "page.js", "style.css"}
    assert {url.partition(":")[0] for url in asked} == {"file"}
    assert page.run("return document.cookie + localStorage.length + sessionStorage.length") == "00"


def test_the_pictures_of_the_docs_can_be_taken(window: Browser, site: Path) -> None:
    taken = screenshots(site, window)
    assert set(taken) == {"light", "dark", "narrow"}
    for data in taken.values():
        assert data.startswith(b"\x89PNG")
        assert 5000 < len(data) < LARGEST
