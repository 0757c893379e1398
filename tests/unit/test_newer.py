"""What images.yaml could ask for, and how `lock --upgrade` brings it in: on stand-in indexes."""

from __future__ import annotations

import difflib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.servers import web_server
from tests.unit.fakes import run_verb
from tests.unit.test_facts import torch
from tests.wheels import StandIn, index, make_wheel
from torch_images.config.edit import with_releases
from torch_images.config.types import Config
from torch_images.fetch.newer import (
    Plan,
    excluded_packages,
    kept,
    newer,
    newer_torch,
    own_releases,
    plan,
)
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.update import NEWER, Finding
from torch_images.host.network import Network


def pages(**projects: list[str | tuple[str, dict[str, Any]]]) -> dict[str, bytes]:
    """The pages of an index by project: versions, or versions with more keys (PEP 691)."""
    responses = {}
    for name, versions in projects.items():
        files = []
        for entry in versions:
            version, more = entry if isinstance(entry, tuple) else (entry, {})
            filename = f"{name}-{version}-py3-none-any.whl"
            files.append({"filename": filename, "url": filename, "hashes": {}, **more})
        project = name.replace("_", "-")
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
        responses[f"/simple/{project}/"] = json.dumps(page).encode()
    return responses


def test_newer_torch_is_final_and_not_yanked(config: Config) -> None:
    """Newer than all, or a newer patch of one that is listed; final, with a wheel, not withdrawn."""
    listed = ["2.9.1", "2.10.0", "2.13.0", "2.14.0"]
    came = ["2.14.2", "2.15.1", "2.99.0", "2.101.0", "2.14.10"]
    never: list[Any] = [
        ("2.99.1", {"yanked": "broken"}),
        ("2.99.2", {"filename": "torch-2.99.2.tar.gz"}),
        *("2.100.0rc1", "2.100.0.dev20261120", "2.100.0+cu130"),
    ]
    files = pages(torch=[*listed, *came, *never])
    with web_server(files) as (url, _), PackageIndex(Network(index=f"{url}/simple")) as index:
        versions = newer_torch(config, index)
    assert versions == ("2.14.2", "2.14.10", "2.15.1", "2.99.0", "2.101.0")


def test_excluded_packages_have_an_upper_bound(config: Config) -> None:
    """An exact version, also as a pin, and an upper bound; a lower bound holds nothing back."""
    files = pages(
        nvidia_cutlass=["4.2.0.0", "4.5.0.0"],
        vllm=["0.33.0", "9.0"],
        cmake=["3.31.1", "4.9.0"],
        nanobind=["99"],
    )
    with web_server(files) as (url, _), PackageIndex(Network(index=f"{url}/simple")) as index:
        findings = {finding.name: finding for finding in excluded_packages(config, index)}
    assert findings.keys() == {"nvidia-cutlass", "cmake", "vllm"}
    assert findings["vllm"].version == "==0.33.0"  # the pin for the newest torch
    assert findings["cmake"] == Finding(
        "images.yaml", "cmake", "<4,>=3.31", NEWER, "-> 4.9.0, which images.yaml excludes"
    )


def test_newer_torch_is_named_with_the_command_that_adds_it(config: Config) -> None:
    with web_server(pages(torch=["2.99.0"])) as (url, _):
        [one] = newer(config, Network(index=f"{url}/simple"))
    assert (one.name, one.state) == ("torch", NEWER)
    assert "-> 2.99.0; `invoke lock --upgrade torch`" in one.detail


def test_kept_releases_by_the_end_of_life_rule(config: Config) -> None:
    """The newest patch of the newest minor versions, and what a source needs."""
    [cuda] = [c for c in config.cudas if c.version == "13.0"]
    bare = replace(config, keep=2, sources=())
    listed = ("2.9.0", "2.11.0", "2.14.0", "2.14.2", "2.14.10", "2.13.0")
    assert kept(bare, cuda, listed) == ("2.13.0", "2.14.10")
    assert kept(replace(bare, keep=99), cuda, listed) == ("2.9.0", "2.11.0", "2.13.0", "2.14.10")
    assert dict(config.sources[1].beside)["13.0"] == "2.11.0"
    needed = replace(config, keep=2)
    assert kept(needed, cuda, listed) == ("2.11.0", "2.13.0", "2.14.10")


def test_a_plan_has_a_place_for_each_release_or_says_why_not(config: Config) -> None:
    cudas = {"2.14.9": "13.0", "2.99.0": "12.8", "3.0.0": "14.0", "3.1.0": "no wheel"}
    plans, notes = plan(replace(config, keep=1, sources=()), cudas)
    dropped = ("2.11.0", "2.12.1", "2.14.1")
    assert plans == (
        Plan(cuda="12.8", releases=("2.99.0",), added=("2.99.0",), dropped=("2.10.0",)),
        Plan(cuda="13.0", releases=("2.14.9",), added=("2.14.9",), dropped=dropped),
    )
    assert plans[0].sentence == "CUDA 12.8: adds torch 2.99.0; drops torch 2.10.0, its tags stay"
    assert notes == (
        "torch 2.99.0: images.yaml pins no vision, vllm for it",
        "torch 2.14.9: images.yaml pins no vllm for it",
        "torch 3.0.0 is for no CUDA here: 14.0",
        "torch 3.1.0 is for no CUDA here: no wheel",
    )
    assert plan(config, {}) == ((), ())


def changed(before: str, after: str) -> list[str]:
    """The lines of a diff, without context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def test_a_release_is_one_line_of_images_yaml(config: Config, root: Path) -> None:
    """Taken out and added again, the file is the same, comments and all."""
    text = (root / "images.yaml").read_text()
    for cuda in config.cudas:
        releases = own_releases(cuda)
        more = with_releases(text, cuda.version, [*releases, "2.99.0"])
        assert changed(text, more) == [
            f"-    torch: [{', '.join(releases)}]",
            f"+    torch: [{', '.join(releases)}, 2.99.0]",
        ]
        assert with_releases(more, cuda.version, releases) == text


def small(root: Path, folder: Path) -> Path:
    """An images.yaml with one CUDA version, one base and one variant, and a comment."""
    document = yaml.safe_load((root / "images.yaml").read_text())
    document["cuda"] = {
        "13.0": {**document["cuda"]["13.0"], "toolkit": ["nvcc"], "torch": ["2.15.0"]}
    }
    del document["architectures"]["7.0"]
    del document["gpu-aliases"]["V100"]
    document["keep"] = 1
    document["sources"] = {"wheel": document["sources"]["wheel"]}
    document["bases"] = {"trixie": document["bases"]["trixie"]}
    document["variants"] = {"runtime": document["variants"]["runtime"]}
    document["catalogue"] = [{"platform": [*document["platforms"]]}]
    document["pods"]["variant"] = "runtime"
    document["packages"] = []
    for key in ("extras", "companions", "exclude", "removals"):
        del document[key]
    path = folder / "images.yaml"
    path.write_text(
        "# ours\n" + yaml.safe_dump(document, default_flow_style=None, sort_keys=False, width=999)
    )
    (folder / "locks").mkdir()
    return path


def upgrade(
    root: Path, config: Path, wheels: list[StandIn], *words: str
) -> subprocess.CompletedProcess[str]:
    """`lock --upgrade torch` with an index of these wheels. It is asked for no Python to run."""
    done, paths = run_verb(root, config, index(wheels), "lock", "--upgrade", "torch", *words)
    assert not [path for path in paths if path.startswith("/pythons")]
    return done


def test_an_upgrade_is_one_line_and_its_locks(root: Path, tmp_path: Path) -> None:
    config = small(root, tmp_path)
    before = config.read_text()
    stale = tmp_path / "locks" / "wheel-cu130-torch2.15.0-py313.json"
    other = tmp_path / "locks" / "wheel-mine-torch2.15.0-py311.json"
    for file in (stale, other):
        file.write_text("x")
    wheels = [
        torch(tmp_path, "2.99.0", "cuda-toolkit==13.0.1"),
        make_wheel(tmp_path, "cuda-toolkit", "13.0.1"),
    ]
    tried = upgrade(root, config, wheels, "--dry-run")
    line = "CUDA 13.0: adds torch 2.99.0; drops torch 2.15.0, its tags stay"
    assert (tried.returncode, tried.stdout, tried.stderr) == (0, f"{line}\n", "")
    assert config.read_text() == before

    done = upgrade(root, config, wheels)
    assert done.returncode == 0, done.stderr
    edited = ["-    torch: [2.15.0]", "+    torch: [2.99.0]"]
    assert changed(before, config.read_text()) == edited
    assert f"To review:\n- {line}\n" in done.stdout
    assert "wheel-cu130-torch2.15.0-py313: removed" in done.stdout
    assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == [
        "release-cu130-torch2.99.0-py313-arm64.json",
        "release-cu130-torch2.99.0-py313.json",
        "wheel-cu130-torch2.99.0-py313-arm64.json",
        "wheel-cu130-torch2.99.0-py313.json",
        other.name,
    ]
    again = upgrade(root, config, wheels)
    assert (again.returncode, again.stdout) == (0, "torch: nothing is newer\n")


def test_a_release_that_cannot_be_locked_changes_nothing(root: Path, tmp_path: Path) -> None:
    """Its wheel has no libraries of torch's."""
    config = small(root, tmp_path)
    before = config.read_text()
    wheels = [
        make_wheel(tmp_path, "torch", "2.99.0", requires=["cuda-toolkit==13.0.1"]),
        make_wheel(tmp_path, "cuda-toolkit", "13.0.1"),
    ]
    done = upgrade(root, config, wheels)
    assert done.returncode == 3
    assert "torch's libtorch_cuda.so cannot be read" in done.stderr.splitlines()[-1]
    assert config.read_text() == before
    assert list((tmp_path / "locks").iterdir()) == []
