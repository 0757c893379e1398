"""A release, rehearsed: the scripts of release.yml, in their order, against a registry on loopback.

Three releases of a small project: the first one; one with newer locks, of which an image in the
middle fails its checks; and one that mends it. What stands in for what is said in
rehearsal.py and github.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.decisions import NOTES
from tests.integration.drivers import repository
from tests.integration.github import ACTIONS, LEFT_OUT, GitHub, Release, Stage, release
from tests.integration.rehearsal import (
    DAYS,
    OTHER,
    PLAIN,
    POD,
    backdate,
    project,
    trust,
    wheels,
    write,
)
from tests.integration.standins import served
from tests.integration.support import Registry, invoke, open_folder, second_engine
from tests.packages import elf
from tests.releases import M130, M132, T130, T132
from tests.wheels import index
from tests.workflows import (
    FAILURE,
    GITHUB,
    SUCCESS,
    name_of,
    read,
    steps,
)

AMD64, ARM64 = f"cu130-torch{T130}-trixie-runtime", f"cu130-torch{T130}-trixie-runtime-arm64"
POD_ID, CU132 = f"cu130-torch{T130}-trixie-pod", f"cu132-torch{T132}-trixie-runtime"
COMPAT_ID = f"{AMD64}-compat"
WHOLE = (T130, M130)
COMPATS = (f"{T130}-compat", f"{M130}-compat", "compat")
PODS = (f"{T130}-pod", f"{M130}-pod", "pod")
CU132S = (T132, M132, "latest")


@pytest.mark.parametrize("name", ["release", "prove", "nightly", "site"])
def test_each_step_is_run_or_has_a_stand_in(name: str) -> None:
    """Whoever adds a step to one of these workflows says here what becomes of it."""
    used = {
        s["uses"].partition("@")[0] for s in steps(GITHUB / f"workflows/{name}.yml") if "uses" in s
    }
    assert used - {"./.github/actions/engine"} <= set(ACTIONS)
    assert set(LEFT_OUT) < {name_of(step) for step in steps(GITHUB / "actions/engine/action.yml")}


@pytest.fixture(scope="module")
def stage(small_locks: Path) -> Iterator[Stage]:
    """Everything that is there before the first release."""
    with (
        open_folder() as folder,
        second_engine(runs=True) as builder,
        second_engine(runs=True) as other,
        repository(elf(NOTES["13.0"])) as (url, key),
    ):
        made = wheels(folder / "wheels")
        origin = folder / "origin"
        project(origin, small_locks, folder / "scratch", made)
        trust(origin, url, key)
        server = Registry(folder / "registry", password=True)
        with served(index(list(made.values()))) as pages:
            env = {"UV_DEFAULT_INDEX": pages}
            for locks in ("base-trixie-arm64", "compat-cu130"):
                done = invoke("lock", "--select", locks, cwd=origin, env=env)
                assert done.returncode == 0, done.stderr
            backdate(origin)
            server.start()
            try:
                github = GitHub(folder=folder, origin=origin, host=server.host)
                yield Stage(github=github, made=made, env=env, builder=builder, other=other)
            finally:
                server.remove()


@pytest.fixture(scope="module")
def first(stage: Stage) -> Release:
    """The first release, of all images; one of them is made again."""
    return release(stage, "v1", AMD64)


@pytest.fixture(scope="module")
def second(stage: Stage, first: Release) -> Release:
    """A newer lock for two images, and one for `pod` with a package that is broken."""
    origin, common = stage.github.origin, ("triton-3.6.0", "torch-images-probe-1.1")
    for name, versions in {
        PLAIN: (f"torch-{T130}", *common),
        POD: (f"torch-{T130}", *common, "torch-images-extra-1.1"),
        OTHER: (f"torch-{T132}", *common),
    }.items():
        write(origin, name, stage.made, *versions, day=DAYS[1])
    return release(stage, "v2", POD_ID)


@pytest.fixture(scope="module")
def third(stage: Stage, second: Release) -> Release:
    """The package is mended."""
    versions = (f"torch-{T130}", "triton-3.6.0", "torch-images-probe-1.1", "torch-images-extra-1.2")
    write(stage.github.origin, POD, stage.made, *versions, day=DAYS[2])
    return release(stage, "v3", POD_ID)


def of_platforms(stage: Stage, reference: str) -> dict[str, str]:
    """Digests by platform in the index that a tag names."""
    held: Any = stage.github.manifest("owner/torch-cu130", reference)
    named = (entry["platform"] for entry in held["manifests"])
    platforms = [f"{platform['os']}/{platform['architecture']}" for platform in named]
    return dict(zip(platforms, (m["digest"] for m in held["manifests"]), strict=True))


def lines(stage: Stage, name: str) -> list[str]:
    """What stand-ins wrote down."""
    return (stage.github.folder / name).read_text().splitlines()


@pytest.mark.slow
def test_the_first_release_is_whole(stage: Stage, first: Release) -> None:
    assert {name: job.result for name, job in first.images.items()} == dict.fromkeys(
        (AMD64, COMPAT_ID, POD_ID, ARM64, CU132), SUCCESS
    )
    assert [job.result for job in first.jobs["release"]] == [SUCCESS]
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"].items()
    assert {(name, name_of(step)) for name, job in jobs for step in job["steps"]} <= first.ran
    names = (AMD64, COMPAT_ID, POD_ID, ARM64)
    digests = {name: first.cu130[first.immutable(name)] for name in names}
    plain, latest = first.cu130[T130], first.cu130["latest"]
    assert first.cu130 == {
        **{first.immutable(name): digest for name, digest in digests.items()},
        **dict.fromkeys(WHOLE, plain),
        **dict.fromkeys(COMPATS, digests[COMPAT_ID]),
        **dict.fromkeys(PODS, digests[POD_ID]),
        "latest": latest,
    }
    for tag, name in ((T130, AMD64), ("latest", COMPAT_ID)):
        assert of_platforms(stage, tag) == {
            "linux/amd64": digests[name],
            "linux/arm64": digests[ARM64],
        }
    cu132 = first.cu132[first.immutable(CU132)]
    assert first.cu132 == dict.fromkeys((first.immutable(CU132), *CU132S), cu132)
    # Each image and index was signed and attested, each image's SBOM beside that.
    host = stage.github.host
    images = [f"{host}/owner/torch-cu130@{digest}" for digest in digests.values()]
    images += [f"{host}/owner/torch-cu132@{cu132}"]
    all_ = [*images, *(f"{host}/owner/torch-cu130@{index}" for index in (plain, latest))]
    assert sorted(lines(stage, "signed")) == sorted(f"sign --yes {subject}" for subject in all_)
    assert sorted(lines(stage, "attested")) == sorted([*all_, *images])


@pytest.mark.slow
def test_each_image_has_its_datasheet_in_the_release(stage: Stage, first: Release) -> None:
    published = stage.github.folder / "releases" / "v1"
    assert (published / "notes.md").read_text() == "The first release.\n"
    sheets = [json.loads(path.read_text()) for path in published.glob("*.json")]
    held = {sheet["id"]: sheet for sheet in sheets}
    assert set(held) == set(first.images)
    for name, sheet in held.items():
        assert sheet["digest"] in {**first.cu130, **first.cu132}.values()
        assert first.reference(name) in sheet["references"]
        assert (published / f"{sheet['digest'].replace(':', '-')}.md").exists()


@pytest.mark.slow
def test_an_empty_engine_pulls_what_was_released(stage: Stage, first: Release) -> None:
    name = f"{stage.github.host}/owner/torch-cu130"
    program = "import platform, torch_images_probe as p; print(platform.machine(), p.ANSWER)"
    with second_engine(runs=True) as engine:
        env = {**stage.machine("image", "v1"), "DOCKER_HOST": engine}
        env["DOCKER_CONFIG"] = first.images[AMD64].env["DOCKER_CONFIG"]
        for reference, platform, machine in (
            (f"{name}:latest", "linux/amd64", "x86_64"),
            (f"{name}:latest", "linux/arm64", "aarch64"),
            (first.reference(ARM64), "linux/arm64", "aarch64"),
            (f"{name}:pod", "linux/amd64", "x86_64"),
        ):
            at = ["--platform", platform]
            run = ["docker", "run", "--rm", "--network=none", *at, reference, "python", "-c"]
            for command in (["docker", "pull", "--quiet", *at, reference], [*run, program]):
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
            assert done.stdout == f"{machine} 42\n"


@pytest.mark.slow
def test_one_image_is_made_again_from_the_registry(first: Release) -> None:
    [again] = first.jobs["reproduce"]
    assert again.result == SUCCESS
    digest = first.cu130[first.immutable(AMD64)]
    said = Path(again.env["GITHUB_STEP_SUMMARY"]).read_text()
    assert "is reproducible: a rebuild from nothing has the same digest" in said
    assert re.findall(r"^  (image|rebuilt) +(sha256:\w+)", said, re.MULTILINE) == [
        ("image", digest),
        ("rebuilt", digest),
    ]


@pytest.mark.slow
def test_users_are_told_of_names_that_exist(stage: Stage, first: Release) -> None:
    """The site, `pick` and the template of a pod, in a checkout of the release."""
    [made] = stage.runner("v1").workflow("site")["make"]
    assert made.result == SUCCESS
    host = stage.github.host
    pages = [path.read_text() for path in (made.folder / "build" / "site").rglob("*.html")]
    # The small catalogue has no image for CUDA 12.8, which the site's table answers with, too.
    name = rf"{host}/owner/torch-cu13\d:[\w.-]+"
    named = {found for page in pages for found in re.findall(name, page)}
    there = {f"{host}/owner/torch-cu130:{tag}" for tag in first.cu130}
    there |= {f"{host}/owner/torch-cu132:{tag}" for tag in first.cu132}
    assert named
    assert named <= there
    env = {"TORCH_IMAGES_REGISTRY": f"{host}/owner", "DOCKER_HOST": stage.builder}
    env["DOCKER_CONFIG"] = first.images[AMD64].env["DOCKER_CONFIG"]
    for driver, tag in (("580", T130), ("550", f"{T130}-compat")):
        asked = ("pick", "--gpu", "H100", "--driver", driver, "--published", "--json")
        picked = invoke(*asked, cwd=made.folder, env=env)
        assert picked.returncode == 0, picked.stderr
        answer = json.loads(picked.stdout)
        assert answer["published"]
        assert answer["image"] == f"{host}/owner/torch-cu130:{tag}"
        assert answer["image"] in there
    image = f"{host}/owner/torch-cu130:pod"
    pod = ("runpod", "--image", image, "--json")
    done = invoke(*pod, cwd=made.folder, env=env)
    assert done.returncode == 2
    assert f"{image} is not public, so RunPod needs credentials to pull it" in done.stderr
    done = invoke(*pod, "--credentials", "cred_1", cwd=made.folder, env=env)
    assert done.returncode == 0, done.stderr
    template = json.loads(done.stdout)["template"]
    assert (template["image"], template["registry"]) == (image, "cred_1")
    assert template["ports"] == ["22/tcp", "8888/http"]


@pytest.mark.slow
def test_a_failed_image_moves_nothing(stage: Stage, first: Release, second: Release) -> None:
    """The one before it and the one after it move on; its own tags stay."""
    results = [(name, job.result) for name, job in second.images.items()]
    assert results == [
        *((AMD64, SUCCESS), (COMPAT_ID, SUCCESS), (POD_ID, FAILURE), (CU132, SUCCESS)),
    ]
    assert "container/test_versions/test_answer[torch-images-extra]" in second.images[POD_ID].log
    new, compat = second.immutable(AMD64), second.immutable(COMPAT_ID)
    assert second.cu130.keys() == first.cu130.keys() | {new, compat}
    moved = {tag for tag, digest in first.cu130.items() if second.cu130[tag] != digest}
    assert moved == {*WHOLE, *COMPATS, "latest"}
    for tag, name in ((T130, new), ("latest", compat)):
        assert of_platforms(stage, second.cu130[tag]) == {
            "linux/amd64": second.cu130[name],
            "linux/arm64": first.cu130[first.immutable(ARM64)],  # its locks are what they were
        }
    old = first.immutable(CU132)
    assert second.cu132.keys() == {old, second.immutable(CU132), *CU132S}
    assert second.cu132[old] == first.cu132[old]
    # Nothing is released.
    [again] = second.jobs["reproduce"]
    assert again.result == FAILURE
    assert "is not in its registry" in again.log
    [end] = second.jobs["release"]
    assert end.result == FAILURE
    assert "::error::not released: matrix success, image failure, again failure" in end.log
    assert not (stage.github.folder / "releases" / "v2").exists()


@pytest.mark.slow
def test_the_release_after_that_has_the_rest(
    stage: Stage, first: Release, second: Release, third: Release
) -> None:
    assert {name: job.result for name, job in third.images.items()} == {POD_ID: SUCCESS}
    assert [job.result for job in third.jobs["reproduce"]] == [SUCCESS]
    assert [job.result for job in third.jobs["release"]] == [SUCCESS]
    digest = third.cu130[third.immutable(POD_ID)]
    assert digest not in second.cu130.values()
    assert third.cu130 == {
        **second.cu130,
        third.immutable(POD_ID): digest,
        **dict.fromkeys(PODS, digest),
    }
    assert third.cu132 == second.cu132
    # Its notes have what v2 brought, too: that was not released.
    notes = (stage.github.folder / "releases" / "v3" / "notes.md").read_text().splitlines()
    assert notes == [
        "Inputs that changed since v1:",
        "",
        f"- torch-images-extra 1.0 -> 1.2 ({POD})",
        f"- torch-images-probe 1.0 -> 1.1 ({POD}, {PLAIN}, {OTHER})",
    ]


@pytest.mark.slow
def test_images_are_proved_and_scanned(stage: Stage, third: Release) -> None:
    """prove.yml for this machine's platform, twice, and the part of nightly.yml that builds."""

    def here(_: str, matrix: Mapping[str, Any]) -> bool:
        return bool(matrix["platform"] == "amd64")

    branch = "ledger/update-amd64"
    stage.github.git("tag", "proving", "v3")
    [proved] = stage.runner("proving").workflow("prove", here)["ledger"]
    assert proved.result == SUCCESS
    ledger = stage.github.git("show", f"{branch}:docs/ledger.csv").splitlines()
    assert {line.partition(",")[0] for line in ledger[1:]} == {AMD64, COMPAT_ID, POD_ID, CU132}
    asked = lines(stage, "asked")
    assert any(line.startswith(f"pr create --head {branch} ") for line in asked)
    assert f"workflow run ci.yml --ref {branch}" in asked
    stage.github.git("tag", "proved", branch)
    [again] = stage.runner("proved").workflow("prove", here)["ledger"]
    assert again.result == SUCCESS
    assert "nothing to build: each image is tested" in again.log
    assert "no new proof" in again.log
    jobs = stage.runner("proved").workflow("nightly", lambda job, _: job != "locks")
    [scanned] = jobs["advisories"]
    assert (scanned.env["IMAGE"], scanned.result) == (POD_ID, SUCCESS)
