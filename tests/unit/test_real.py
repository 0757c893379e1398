"""The project's own images.yaml with its locks; all other unit tests run on tests/fixtures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from docs_tables import PAGES, fill, tables

from tests.unit.conftest import ROOT
from torch_images.build.diskspace import disk_needed
from torch_images.build.plan import lock_image, plan_images
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.lock_selection import inputs
from torch_images.config.matrix import matrix
from torch_images.config.tags import floating
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps, parse
from torch_images.locks.wheels import WheelLock
from torch_images.platforms import AMD64, ARM64
from torch_images.verify import ledger

LOCKS = ROOT / "locks"
# As images.yaml, the new text, and the CUDA version whose images change.
EDITS = (
    ('first-driver: "384"', 'first-driver: "385"', "12.8"),  # Volta, which 13.x cannot target
    ('driver: "595.45.04"', 'driver: "595.45.05"', "13.2"),
    ('"9.0", "10.0", "10.1", "12.0"]', '"9.0", "10.0", "10.1", "10.3", "12.0"]', "12.8"),
)


def identities(config: Config) -> Mapping[str, str]:
    """The identity of each image of the catalogue, by its identifier."""
    return {p.spec.id: p.identity for p in plan_images(config, matrix(config), ROOT, LOCKS)}


@pytest.fixture(scope="module")
def before(real: Config) -> Mapping[str, str]:
    return identities(real)


def test_locks_are_those_of_the_catalogue(real: Config) -> None:
    files = {path.stem for path in LOCKS.iterdir()} - {"host", "host-dev"}
    assert {item.name for item in inputs(real)} == files


def test_locks_are_written_as_they_are_read() -> None:
    for path in LOCKS.glob("wheel-*.json"):
        text = path.read_text()
        assert dumps(parse(WheelLock, text, path.stem)) == text


def test_each_image_has_floating_tags_and_each_cuda_version_latest(real: Config) -> None:
    tags = {spec: floating(real, spec) for spec in matrix(real)}
    assert all(names[0].startswith(spec.torch) for spec, names in tags.items())
    latest = {spec.cuda.version for spec, names in tags.items() if "latest" in names}
    assert latest == {cuda.version for cuda in real.cudas}


def test_no_two_images_have_the_same_files(before: Mapping[str, str]) -> None:
    """A word is in an identifier only if it changes files: no two render one context."""
    assert len({*before.values()}) == len(before)


@pytest.mark.parametrize(("old", "new", "cuda"), EDITS)
def test_a_fact_changes_only_the_images_it_is_about(
    before: Mapping[str, str], real: Config, tmp_path: Path, old: str, new: str, cuda: str
) -> None:
    text = (ROOT / "images.yaml").read_text()
    assert old in text
    (tmp_path / "images.yaml").write_text(text.replace(old, new, 1))
    after = identities(with_facts(load_config(tmp_path / "images.yaml"), LOCKS))
    assert after.keys() == before.keys()
    versions = {spec.id: spec.cuda.version for spec in matrix(real)}
    changed = Counter(versions[name] for name in before if before[name] != after[name])
    assert changed == {cuda: Counter(versions.values())[cuda]}


def test_every_removal_concerns_a_locked_wheel(real: Config) -> None:
    for cuda in real.names("cuda"):
        lock = lock_image(real, choose(real, cuda=cuda, platform=AMD64.name), LOCKS).lock
        for removal in real.removals:
            if removal.applies(cuda, AMD64, narrowed=True):
                assert set(removal.wheels) & lock.wheels.versions().keys(), removal


def test_disk_space_is_estimated_near_what_was_measured(real: Config) -> None:
    """The peak, in GB, is one of those in diskspace.py."""
    image = lock_image(real, choose(real, cuda="12.8", platform=AMD64.name), LOCKS)
    assert 1 <= disk_needed(real, [image]) / 13.57e9 <= 1.12


@pytest.mark.parametrize("native", [AMD64, ARM64])
def test_tables_of_the_docs_are_up_to_date(
    real: Config, monkeypatch: pytest.MonkeyPatch, native: object
) -> None:
    """If not: `./inv docs`, on any machine."""
    monkeypatch.setattr("torch_images.config.combine.native", lambda: native)
    parts = tables(real, ROOT, LOCKS)
    texts = [(ROOT / name).read_text() for name in PAGES]
    assert [fill(text, parts) for text in texts] == texts
    assert all("".join(texts).count(table) == 1 for table in parts.values())


def test_the_ledger_names_images_of_the_catalogue(real: Config) -> None:
    assert {line.image for line in ledger.read(ROOT)} <= {spec.id for spec in matrix(real)}


def test_the_ledger_names_commits_that_can_be_checked_out() -> None:
    """`reproduce` refuses one that ends in "-dirty"."""
    commits = {line.commit for line in ledger.read(ROOT)}
    assert [commit for commit in commits if not re.fullmatch("[0-9a-f]{40}", commit)] == []
