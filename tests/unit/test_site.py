"""The site: whole, true to its inputs, and safe with any text in them. See test_answers.py, too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.locks.image_lock import compat_versions
from torch_images.pick import answers
from torch_images.publish.site import generate
from torch_images.verify import ledger

HOSTILE = "</script><img src=x onerror=alert(1)>&'\"{{ 7*7 }}"
PROVED = "cu130-torch2.14.1-trixie-runtime"
TRIED = "cu130-sm90-torch2.14.1-trixie-runtime"
EMPTY = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """What is in a page: its text, its elements, and where it leads. Elements must be closed."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cells: list[str] = []
        self.feed(data.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("th", "td"):
            self.cells.append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if {"th", "td"} & set(self.open):
            self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def project(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with another ledger: of an image with a proof, and one that was tried."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("docker", "scripts", "site"):
        (folder / name).symlink_to(root / name)
    line = ledger.Line(
        image=PROVED,
        inputs="a" * 64,
        digest="sha256:" + "c" * 64,
        commit="b" * 40,
        date="2026-11-23",
        checks=205,
        machine="2 processors, 25 GB",
    )
    tried = replace(line, image=TRIED, missing="no answer from <the> index")
    ledger.write(folder, [line, tried])
    return folder


@pytest.fixture(scope="module")
def make(root: Path, project: Path) -> Callable[..., dict[str, bytes]]:
    def call(config: Config, **options: str) -> dict[str, bytes]:
        return generate(config, project, root / "locks", **{"namespace": "ghcr.io/me", **options})

    return call


@pytest.fixture(scope="module")
def whole(config: Config, make: Callable[..., dict[str, bytes]]) -> dict[str, bytes]:
    return make(config)


def test_the_list_has_each_image_and_words_that_a_search_finds(
    whole: dict[str, bytes], config: Config
) -> None:
    specs = matrix(config)
    assert set(whole) == {"favicon.svg", "filter.js", "index.html", "style.css"}
    page = Page(whole["index.html"])
    count, words, gpus = len(specs), page.values("data-words"), page.values("data-gpus")
    for spec, own, gpu_names in zip(specs, words[-count:], gpus[-count:], strict=True):
        assert f"{spec.variant.name} {spec.source.name} {spec.platform.name} " in own
        served = [name for a in spec.architectures for name in (*a.geforce, *a.gpus)]
        assert gpu_names.split(", ") == served
    assert "8.9 sm89 Ada Lovelace linux/amd64" in words


def test_every_link_leads_somewhere_and_nothing_loads_from_elsewhere(
    whole: dict[str, bytes], config: Config
) -> None:
    page = Page(whole["index.html"])
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    links = [*page.values("href"), *page.values("src")]
    anchors = {f"#{name}" for name in ids}
    assert set(links) <= anchors | set(whole) | {config.homepage}
    scripts = b"".join(whole[name] for name in ("filter.js", "style.css")).decode()
    loads = r"https?:|@import|url\(|import\(|fetch\(|XMLHttp|Cookie|Storage"
    assert not re.search(
        rf"{loads}|innerHTML|outerHTML|insertAdjacent|eval\(", scripts, re.IGNORECASE
    )


def test_page_has_the_answers_of_pick(
    whole: dict[str, bytes], config: Config, root: Path, project: Path
) -> None:
    """All of it without a script, which only the search needs: GPUs, drivers, image, and why."""
    state = ledger.reader(config, ledger.read(project), project, root / "locks")
    compat = {p: compat_versions(config, root / "locks", p) for p in config.platforms}
    expected = answers.rows(config, compat, namespace="ghcr.io/me", state=state)
    [body] = re.findall(
        r'<table id="answers"[^>]*>.*?<tbody>(.*?)</tbody>', whole["index.html"].decode(), re.DOTALL
    )
    pages = [Page(row.encode()) for row in body.strip().splitlines()]
    for page, row in zip(pages, expected, strict=True):
        gpus, platform, drivers, image, torch, way, proof = page.cells
        assert gpus == f"{', '.join(row.gpus)} ({row.kind})"
        assert platform == (row.platform or "any")
        assert [word.split()[0] for word in drivers.split(", ")] == list(row.branches or ["any"])
        assert (image, torch) == (row.image or "none", row.torch)
        assert page.values("data-command") == ([row.command] if row.image else [])
        assert (way, proof) == (row.way, row.proof)
        assert page.values("data-gpus") == [", ".join(row.gpus)]
        assert page.values("data-drivers") == ([" ".join(row.branches)] if row.branches else [])
    page = Page(whole["index.html"])
    hidden = [a.get("data-table") or a["id"] for _, a in page.tags if "hidden" in a]
    assert hidden == ["answers", "answer", "images"]
    assert page.text.count("docker run --rm --gpus all IMAGE") == 1


def test_page_escapes_any_text(config: Config, make: Callable[..., dict[str, bytes]]) -> None:
    variants = tuple(replace(v, description=HOSTILE) for v in config.variants)
    first, *others = config.architectures
    arches = (replace(first, gpus=(*first.gpus, HOSTILE)), *others)
    hostile = replace(config, variants=variants, architectures=arches)
    page = Page(make(hostile, commit=HOSTILE)["index.html"])
    assert "img" not in {tag for tag, _ in page.tags}
    assert not page.values("onerror")
    assert HOSTILE in page.text
    assert page.values("src") == ["filter.js"]
