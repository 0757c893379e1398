"""The site in a real browser, from a file: a search finds what `pick` says. No engine is needed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import ENTER, PACKAGES, Browser, axe_core, browser, programs
from tests.integration.support import as_root, invoke

INSTALL = ("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *PACKAGES)
ROWS = """
return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]
  .filter((row) => row.checkVisibility())
  .map((row) => [...row.cells].map((cell) => cell.textContent));
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


def picked(gpu: str, driver: str, platform: str) -> dict[str, Any] | None:
    """What the command says; None where no image works."""
    done = invoke("pick", "--gpu", gpu, "--driver", driver, "--platform", platform, "--json")
    answer: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return answer


@pytest.mark.parametrize(
    ("gpu", "driver", "names"),
    [
        ("NVIDIA GeForce RTX 5090", "570.133.07", ["RTX 5090"]),
        ("NVIDIA A100-SXM4-80GB", "550.54.15", ["A100"]),
        ("NVIDIA GH200 480GB", "580", ["GH200"]),
        ("GeForce RTX 4090", "390.48", ["RTX 4090"]),
        ("Tesla T4", "570.133.20", ["T4"]),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "580", ["RTX PRO 6000"]),
    ],
)
def test_search_finds_the_answers_of_pick(
    page: Browser, gpu: str, driver: str, names: list[str]
) -> None:
    """By the words of nvidia-smi, one row for each platform."""
    page.type("#gpu", gpu)
    page.type("#driver", driver)
    rows = page.run(ROWS, "answers")
    assert len({row[1] for row in rows}) == len(rows) > 0
    for gpus, platform, _, image, _, _, proof in rows:
        assert set(names) <= set(gpus.partition(" (")[0].split(", "))
        answer = picked(gpu, driver, "" if platform == "any" else platform)
        assert (image, proof) == ((answer["image"], answer["proof"]) if answer else ("none", ""))
    assert page.messages() == []


@pytest.mark.parametrize(
    ("typed", "gpus"),
    [
        ("rtx5090", {"RTX 5090"}),
        ("Tesla T4", {"T4"}),
        ("6000Ada", {"RTX 6000 Ada"}),
        ("sm_89", {"L4", "RTX 4090"}),
        ("hopper", {"H100", "GH200"}),
        ("p5.48xlarge", {"H100"}),
        ("Standard_NC24ads_A100_v4", {"A100"}),
        ("gibberish", set()),
    ],
)
def test_both_searches_know_how_gpus_are_written(page: Browser, typed: str, gpus: set[str]) -> None:
    """Each row found has one of these GPUs, and each of them has a row."""
    script = """
    return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]
      .filter((row) => row.checkVisibility())
      .map((row) => row.dataset.gpus.split(", "));
    """
    for field, table in (("#gpu", "answers"), ("#search", "images")):
        page.type(field, typed)
        matches = [set(row) & gpus for row in page.run(script, table)]
        assert set().union(*matches) == gpus
        assert all(matches)
    message = "No row has that. Try the name that nvidia-smi prints, or a number such as 8.9."
    assert (page.text("form[data-table=answers] output") == message) == (not gpus)


def test_the_answer_is_a_command_to_copy_and_a_link(page: Browser, site: Path) -> None:
    """Text "RTX 5090 570" in the field of the GPU is both; "RTX PRO 500" is only a GPU."""
    page.type("#gpu", "RTX PRO 500")
    assert page.run("return document.getElementById('answer').hidden")
    page.open((site / "index.html").as_uri())
    page.type("#gpu", "RTX 5090 570")
    wanted = picked("RTX 5090", "570", "")
    assert wanted
    command = wanted["command"].replace("invoke ", "./inv ")
    assert command in page.text("#answer li")
    page.run("document.querySelector('#answer button').click()")
    assert page.run("return getSelection().toString()") == command
    link = page.run("return document.querySelector('#answer a').search")
    assert link == "?gpu=RTX+5090&driver=570"
    page.open((site / "index.html").as_uri() + link)
    assert command in page.text("#answer li")
    assert page.run("return document.getElementById('driver').value") == "570"
    assert page.messages() == []


def test_no_image_is_broken_into_lines(page: Browser, site: Path) -> None:
    page.show(width=1280)
    page.open((site / "index.html").as_uri())
    lines = """
    const height = (e) => e.getBoundingClientRect().height;
    return [...new Set([...document.querySelectorAll("td.image code")].map(height))].length;
    """
    assert page.run(lines) == 1


def every(page: Browser) -> list[list[str]]:
    """All rows of the answers, shown or not."""
    script = "[...document.querySelectorAll('#answers tbody tr')]"
    rows: list[list[str]] = page.run(
        f"return {script}.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return rows


def test_search_ignores_an_invalid_driver(page: Browser) -> None:
    every = page.run(ROWS, "answers")
    page.type("#driver", "<img src=x onerror=alert(1)>")
    assert page.run(ROWS, "answers") == every
    assert page.run("return document.querySelectorAll('#driver:invalid').length") == 1
    assert page.run("return document.images.length") == 0


def test_search_narrows_the_list_of_images(page: Browser) -> None:
    count = "form[data-table=images] output"
    names = [row[0] for row in page.run(ROWS, "images")]
    assert page.text(count) == f"{len(names)} of {len(names)} rows"
    page.type("#search", "h100 VLLM")
    shown = [row[0] for row in page.run(ROWS, "images")]
    assert shown == [
        name for name in names if name.endswith("-vllm") and ("-sm90-" in name or "-sm" not in name)
    ]
    assert page.text(count) == f"{len(shown)} of {len(names)} rows"
    page.type("#search", " nothing")
    assert page.text(count) == f"{len(shown)} of {len(names)} rows, without regard to nothing"


def test_page_works_by_keyboard(page: Browser) -> None:
    """From the first Tab to the answer."""
    page.tab_to("Skip to the content", most=1)
    page.press(ENTER)
    page.tab_to("gpu", most=1)
    page.press("gh200")
    page.tab_to("driver", most=1)
    page.press("580")
    expected = picked("GH200", "580", "")
    assert expected
    assert [row[3] for row in page.run(ROWS, "answers")] == [expected["image"]]
    assert page.messages() == []


@pytest.mark.parametrize("width", [320, 390, 700, 900, 1000, 1280, 1400])
def test_page_clips_nothing(page: Browser, site: Path, width: int) -> None:
    """Neither what was typed nor what is said has more width than its place."""
    page.show(width=width)
    clipped = """
    return [...document.querySelectorAll("main *")]
      .filter((e) => e.checkVisibility() && e.clientWidth && e.scrollWidth > e.clientWidth)
      .map((e) => e.outerHTML.slice(0, 200));
    """
    page.open((site / "index.html").as_uri())
    assert page.run(clipped) == []
    page.type("#gpu", "NVIDIA GeForce RTX 5090")
    page.type("#driver", "570.133.07")
    assert page.run(clipped) == []


def test_page_shows_the_answer_first_on_a_phone(page: Browser) -> None:
    """Without scrolling: the image, then what it is for."""
    page.show(width=390, height=844)
    page.type("#gpu", "NVIDIA GeForce RTX 5090")
    page.type("#driver", "580.95.05")
    places = page.run("""
    const row = [...document.querySelectorAll("#answers tbody tr")]
      .find((row) => row.checkVisibility());
    return [...row.cells].map((cell) => cell.getBoundingClientRect().bottom);
    """)
    assert min(places) == places[3]
    assert places[3] + page.run("return scrollY") < 844
    assert max(places) < 844


def test_page_without_scripts(page: Browser, site: Path) -> None:
    expected = every(page)
    page.scripts(run=False)
    try:
        page.open((site / "index.html").as_uri())
        assert page.run(ROWS, "answers") == expected
        assert page.text("noscript").startswith("The search of your browser finds")
        assert page.run("return document.querySelector('form').checkVisibility()") is False
    finally:
        page.scripts(run=True)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1000])
def test_axe_finds_nothing(page: Browser, axe: str, width: int, scheme: str) -> None:
    """Also after a search."""
    page.show(width=width, scheme=scheme)
    assert page.violations(axe) == []
    page.type("#gpu", "NVIDIA GeForce RTX 5090")
    assert page.violations(axe) == []
    page.run("document.querySelector('main').append(document.createElement('input'))")
    assert [rule for rule, *_ in page.violations(axe)] == ["label"]


def test_page_requests_only_files(page: Browser, site: Path) -> None:
    urls = page.requested()
    # A headless browser shows no icon.
    needed = {"index.html", "filter.js", "style.css"}
    assert {Path(url).name for url in urls} - {"favicon.svg"} == needed
    assert {url.partition(":")[0] for url in urls} == {"file"}
    assert page.run("return document.cookie + localStorage.length + sessionStorage.length") == "00"
