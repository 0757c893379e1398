"""The site: whole, true to its inputs, and safe with any text in them. See test_answers.py, too."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torch_images.build.plan import lock_image
from torch_images.config.choose import choose
from torch_images.config.matrix import matrix
from torch_images.config.selection import find_image
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.image_lock import compat_versions
from torch_images.publish import answers, ledger
from torch_images.publish.image_page import changes
from torch_images.publish.site import generate, write

HOSTILE = "</script><img src=x onerror=alert(1)>&'\"{{ 7*7 }}"
NEVER = "cu130-sm120-torch2.13.0-trixie-runtime"
PROVED = "cu130-sm90-torch2.14.1-trixie-runtime"
EMPTY = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """What is in a page: its text, its elements, and where it leads. Elements must be closed."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cells: list[str] = []
        self.feed(data.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
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
        return [attributes[name] or "" for _, attributes in self.found if name in attributes]


@pytest.fixture(scope="module")
def few(config: Config) -> Config:
    """Fewer images: those of one CUDA version and two releases of torch."""
    [cuda] = (c for c in config.cudas if c.version == "13.0")
    return replace(config, cudas=(replace(cuda, torch=("2.13.0", "2.14.1")),))


@pytest.fixture(scope="module")
def make(root: Path) -> Callable[..., dict[str, bytes]]:
    def call(config: Config, **options: str) -> dict[str, bytes]:
        return generate(config, root, root / "locks", **{"namespace": "ghcr.io/me", **options})

    return call


@pytest.fixture(scope="module")
def whole(config: Config, make: Callable[..., dict[str, bytes]]) -> dict[str, bytes]:
    return make(config)


@pytest.fixture(scope="module")
def plain(few: Config, make: Callable[..., dict[str, bytes]]) -> dict[str, bytes]:
    return make(few)


def test_there_is_a_page_for_each_image(whole: dict[str, bytes], config: Config) -> None:
    names = {f"images/{spec.id}.html" for spec in matrix(config)}
    assert set(whole) == names | {"index.html", "filter.js", "style.css"}
    rows = [a for tag, a in Page(whole["index.html"]).found if tag == "tr" and "data-words" in a]
    assert len(rows) == len(names)


def test_every_page_is_whole_and_every_link_leads_somewhere(
    whole: dict[str, bytes], config: Config
) -> None:
    outside = set()
    for name, text in whole.items():
        if not name.endswith(".html"):
            continue
        page = Page(text)
        ids = page.values("id")
        assert len(ids) == len(set(ids)), name
        for target in (*page.values("href"), *page.values("src")):
            if re.match(r"[a-z]+:", target):
                outside.add(target)
                continue
            path, _, anchor = target.partition("#")
            file = (Path("/", name).parent / path).resolve() if path else Path("/", name)
            assert str(file)[1:] in whole, (name, target)
            if anchor:
                assert f'id="{anchor}"'.encode() in whole[str(file)[1:]], (name, target)
    assert outside == {config.homepage}


def test_nothing_is_loaded_from_elsewhere(whole: dict[str, bytes]) -> None:
    for name in ("filter.js", "style.css"):
        text = whole[name].decode()
        assert not re.search(r"https?:|//[a-z]|@import|url\(|import\(", text.replace("// ", "")), (
            name
        )
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|Cookie|Storage",
            text,
            re.IGNORECASE,
        ), name


def test_the_page_says_what_pick_says(whole: dict[str, bytes], config: Config, root: Path) -> None:
    """All of it without a script: GPUs, platform, drivers, image, and why."""
    states = ledger.states(config, matrix(config), ledger.read(root), root, root / "locks")
    compat = {p: compat_versions(config, root / "locks", p) for p in config.platforms}
    wanted = answers.rows(config, compat, namespace="ghcr.io/me", state=states.__getitem__)
    [body] = re.findall(
        r'<table id="answers">.*?<tbody>(.*?)</tbody>', whole["index.html"].decode(), re.DOTALL
    )
    found = [Page(row.encode()) for row in body.strip().splitlines()]
    for page, row in zip(found, wanted, strict=True):
        gpus, platform, drivers, image, way, proof = page.cells
        assert gpus == f"{', '.join(row.gpus)} ({row.kind})"
        assert platform == (row.platform or "any")
        assert [word.split()[0] for word in drivers.split(", ")] == list(row.branches or ["any"])
        assert image == (row.image or "none")
        assert (way, proof) == (row.way, row.proof)
        assert page.values("href") == ([f"images/{row.id}.html"] if row.id else [])
        assert page.values("data-drivers") == ([" ".join(row.branches)] if row.branches else [])


def test_without_javascript_nothing_is_hidden_but_the_search(whole: dict[str, bytes]) -> None:
    page = Page(whole["index.html"])
    hidden = [(tag, a["data-table"]) for tag, a in page.found if "hidden" in a]
    assert hidden == [("form", "answers"), ("form", "images")]
    assert page.text.count("docker run --rm --gpus all IMAGE") == 1


def test_equal_inputs_give_equal_bytes(
    few: Config, make: Callable[..., dict[str, bytes]], plain: dict[str, bytes]
) -> None:
    assert make(few) == plain
    named = make(few, commit="c0ffee1")
    assert "from commit c0ffee1 ." in Page(named["index.html"]).text
    assert "from commit" not in Page(plain["index.html"]).text
    for wrong in ("C0FFEE1", "c0ffee", "c0ffee1\n", "x" * 40, "0" * 41):
        with pytest.raises(UsageError, match="is not a commit; give 7 to 40"):
            make(few, commit=wrong)


def test_any_text_stays_text(
    few: Config, make: Callable[..., dict[str, bytes]], plain: dict[str, bytes]
) -> None:
    variants = tuple(replace(v, description=HOSTILE) for v in few.variants)
    first, *others = few.architectures
    arches = (replace(first, gpus=(*first.gpus, HOSTILE)), *others)
    hostile = replace(few, variants=variants, architectures=arches)
    files = make(hostile)
    for name in ("index.html", f"images/{NEVER}.html"):
        page = Page(files[name])
        assert "img" not in {tag for tag, _ in page.found}
        assert not page.values("onerror")
        assert HOSTILE in page.text
        assert len(page.values("src")) == len(Page(plain[name]).values("src"))


def test_what_is_not_known_is_said(plain: dict[str, bytes]) -> None:
    text = Page(plain[f"images/{NEVER}.html"]).text
    assert "The ledger has no line for it: not built yet." in text
    assert "native sm_120, by the code in torch's wheel" in text
    assert "Checks passed" not in text
    assert "sha256:" not in text.replace("Lock sha256:", "")


def test_what_the_ledger_says_is_shown(
    plain: dict[str, bytes], whole: dict[str, bytes], root: Path
) -> None:
    line = ledger.read(root)[PROVED]
    text = Page(plain[f"images/{PROVED}.html"]).text
    assert f"Checks passed {line.checks} " in text
    for value in (line.digest, line.date, line.inputs, line.lock, line.machine):
        assert value in text
    tried = next(p for p in ledger.read(root).values() if p.missing)
    page = Page(whole[f"images/{tried.image}.html"]).text
    assert "Could not be built" in page
    assert " ".join(tried.missing.split()) in page
    assert "checks passed" not in page


def test_changes_are_those_of_the_locks(config: Config, root: Path) -> None:
    new, old = (
        lock_image(config, choose(config, cuda="13.0", torch=torch), root / "locks")
        for torch in ("2.14.1", "2.13.0")
    )
    found = changes(old, new)
    assert found["id"] == old.spec.id
    rows = {name: (before, after) for _, name, before, after in found["rows"]}
    assert rows["torch"] == ("2.13.0", "2.14.1")
    assert "numpy" not in rows  # it is the same in both
    assert changes(new, new)["rows"] == []
    devel = lock_image(
        config, choose(config, cuda="13.0", torch="2.14.1", variant="devel"), root / "locks"
    )
    added = {
        (kind, name): (before, after) for kind, name, before, after in changes(new, devel)["rows"]
    }
    assert added["Debian package", "git"][0] == ""
    assert added["wheel", "ninja"][0] == ""


def test_a_page_compares_with_the_release_before(plain: dict[str, bytes]) -> None:
    page = Page(plain[f"images/{PROVED}.html"])
    assert f"Packages that differ from {PROVED.replace('2.14.1', '2.13.0')}" in page.text
    oldest = Page(plain[f"images/{PROVED.replace('2.14.1', '2.13.0')}.html"])
    assert "There is no older release of torch of this image to compare it with." in oldest.text


def test_the_page_of_an_image_for_linux_arm64(
    plain: dict[str, bytes], few: Config, root: Path
) -> None:
    """It has the lock, the tags and the release before of its own platform."""
    name = PROVED.replace("2.14.1", "2.13.0")
    page, other = (Page(plain[f"images/{name}{end}.html"]) for end in ("-arm64", ""))
    assert "Platform : linux/arm64; images for linux/arm64 are built under" in page.text
    assert "Platform : linux/amd64." in other.text
    assert "ghcr.io/me/torch-cu130:2.13.0-sm90 " in page.text
    assert "torch-cu130:sm90-arm64" in Page(plain[f"images/{PROVED}-arm64.html"]).text
    for text, end in ((page.text, "-arm64"), (other.text, "")):
        spec = find_image(few, f"{name}{end}")
        assert f"sha256:{lock_image(few, spec, root / 'locks').lock.digest}" in text
    newest = Page(plain[f"images/{PROVED}-arm64.html"])
    assert f"Packages that differ from {name}-arm64" in newest.text
    assert "linux/arm64 emulated" in newest.text  # the machine of the ledger
    assert "The ledger has no line for it: not built yet." in page.text  # PROVED has one
    assert "native sm_90, by the code in torch's wheel" in newest.text
    spark = Page(plain["images/cu130-sm121-torch2.14.1-trixie-runtime-arm64.html"])
    assert "same-major sm_120, by the code in torch's wheel" in spark.text
    assert "GB10, DGX Spark" in spark.text
    names = [text for text in spark.words if text.startswith("ghcr.io/me/")]
    assert names[0] == "ghcr.io/me/torch-cu130:2.14.1-sm121"
    assert not [name for name in names if "arm64" in name]


def test_a_search_finds_the_images_of_a_gpu_and_a_platform(
    plain: dict[str, bytes], few: Config
) -> None:
    page = Page(plain["index.html"])
    words = page.values("data-words")
    for spec, held in zip(matrix(few), words, strict=True):
        assert f"{spec.variant.name} {spec.source.name} {spec.platform.name} " in held
        assert all(name in held for arch in spec.architectures for name in arch.gpus)
    caveat = "Images for linux/arm64 are built under an emulator (QEMU); none has run on "
    assert f"{caveat}an Arm host with a GPU." in page.text


def test_nothing_of_a_users_is_replaced(plain: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "site"
    first = write({"index.html": b"one", "images/gone.html": b"x"}, folder)
    assert first == folder
    write({"index.html": b"two"}, folder)
    assert (folder / "index.html").read_bytes() == b"two"
    assert not (folder / "images").exists()
    (folder / "mine").write_text("mine")
    with pytest.raises(UsageError, match="has mine, which was not written by this"):
        write(plain, folder)
    assert (folder / "index.html").read_bytes() == b"two"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"has notes\.txt"):
        write(plain, folder)
