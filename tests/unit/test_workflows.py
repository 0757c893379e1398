"""The workflows: valid, safe by a linter's measure, and true to the verbs that they call."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_images.build.diskspace import disk_needed
from torch_images.build.plan import lock_images
from torch_images.cli.collection import VERBS
from torch_images.cli.parser import parse
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.files import dumps

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
ACTIONS = sorted(GITHUB.glob("actions/*/action.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-actions": ACTIONS,
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.renovate": [ROOT / "renovate.json"],
}


def read(path: Path) -> Any:
    """A workflow or an action, whose values are all texts."""
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # noqa: S506  texts only


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow or an action."""
    document = read(path)
    groups = [document["runs"]] if "runs" in document else document["jobs"].values()
    return [step for group in groups for step in group["steps"]]


def lines(script: str) -> list[str]:
    """Commands of a script, continued lines joined."""
    return [line.strip() for line in script.replace("\\\n", " ").splitlines()]


INVOKED = [
    (path.name, line)
    for path in (*WORKFLOWS, *ACTIONS)
    for step in steps(path)
    for line in lines(step.get("run", ""))
    if "./inv" in line
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_valid_by_its_schema(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run(
        [*command, *map(str, SCHEMAS[schema])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_security_linter_finds_nothing() -> None:
    command = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--no-progress"]
    done = subprocess.run(
        [*command, str(GITHUB)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout
    assert "No findings" in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_given_to_jobs_alone(path: Path) -> None:
    document = read(path)
    assert document["permissions"] == {}
    assert document["defaults"]["run"]["shell"] == "bash"
    for job in document["jobs"].values():
        assert job["permissions"]
        assert 0 < int(job["timeout-minutes"]) <= 360
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert (
            writes
            <= {
                "release": {"packages", "id-token", "attestations", "contents"},
                "nightly": {"contents", "pull-requests", "actions"},
                "prove": {"contents", "pull-requests", "actions"},
                "site": {"pages", "id-token"},
                "ci": set(),
                "weekly": set(),
            }[path.stem]
        )


SECRET = re.compile(r"secrets\.|github\.token")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_only_the_step_that_needs_a_token_gets_one(path: Path) -> None:
    document = read(path)
    for scope in (document, *document["jobs"].values()):
        assert not SECRET.search(str(scope.get("env", "")))
    for step in steps(path):
        environment = step.get("env", {})
        calls = any(
            re.search(r"(^|[\s(])gh |open-pull-request", line)
            for line in lines(step.get("run", ""))
        )
        assert ("GH_TOKEN" in environment) == calls, step
        assert not SECRET.search(str(environment)) or calls, step
        assert not SECRET.search(step.get("run", ""))


@pytest.mark.parametrize("name", ["nightly", "prove"])
def test_a_pull_request_is_checked(name: str) -> None:
    """What GITHUB_TOKEN pushes or opens starts no workflow, except by a dispatch."""
    assert "workflow_dispatch" in read(GITHUB / "workflows" / "ci.yml")["on"]
    jobs = read(GITHUB / "workflows" / f"{name}.yml")["jobs"].values()
    [job] = [job for job in jobs if "pull-requests" in job["permissions"]]
    assert job["permissions"]["actions"] == "write"
    assert any("scripts/open-pull-request" in step.get("run", "") for step in job["steps"])


def test_advisories_are_looked_up_every_night() -> None:
    job = read(GITHUB / "workflows" / "nightly.yml")["jobs"]["advisories"]
    assert job["permissions"] == {"contents": "read"}
    *_, build, scan = job["steps"]
    assert './inv sbom "$IMAGE" >sbom.cdx.json' in lines(build["run"])
    assert scan["with"]["sbom"] == "sbom.cdx.json"
    assert scan["with"]["severity-cutoff"] == "critical"
    assert scan["with"].get("fail-build", "true") == "true"


def test_only_the_job_that_makes_the_release_may_write_contents() -> None:
    """It runs nothing that was built, and only for a tag."""
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    writing = [name for name, job in jobs.items() if job["permissions"].get("contents") == "write"]
    assert writing == ["release"]
    stop, publish = jobs["release"]["steps"]
    assert "github.ref_type == 'tag'" in publish["if"]
    assert "if" not in stop
    assert {*jobs["release"]["needs"]} == {*jobs} - {"release"}


@pytest.mark.parametrize(("name", "line"), INVOKED)
def test_every_invoke_line_parses(name: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("./inv") + 1 :]
    stops = [i for i, word in enumerate(words) if re.match(r"[|&;]|\d?>", word)]
    words = words[: min(stops, default=len(words))]
    words = words[1:] if words[0] == "--yes" else words
    parse(VERBS, words[0], words[1:])


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name + path.stem
)
def test_scripts_pass_shellcheck(path: Path, tmp_path: Path) -> None:
    scripts = [step["run"] for step in steps(path) if "run" in step]
    files = [tmp_path / f"{number}.sh" for number in range(len(scripts))]
    for file, script in zip(files, scripts, strict=True):
        file.write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}")
    command = [str(Path(sys.executable).parent / "shellcheck"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_image_is_built_on_a_machine_of_its_platform() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    runs_on = jobs["image"]["runs-on"]
    assert "matrix.image.platform == 'linux/arm64' && 'ubuntu-24.04-arm' ||" in runs_on
    assert jobs["reproduce"]["runs-on"] == runs_on


def test_what_is_built_for_others_is_locked() -> None:
    builds = {name: line for name, line in INVOKED if " build " in line}
    assert sorted(builds) == ["nightly.yml", "prove.yml", "release.yml"]
    assert all("--locked" in build for build in builds.values())


# https://docs.github.com/en/actions/reference/limits: jobs of a matrix, minutes of a job.
JOBS, MINUTES = 256, 360
# What a runner has where .github/actions/engine puts what is large, of 70 GB: GB.
DISK = 60
# Minutes for an image, from nothing, with checks: three times what docs/performance.md measured.
IMAGE = 6


def test_the_catalogue_fits_into_what_github_gives(config: Config, root: Path) -> None:
    images = matrix(config)
    assert len(images) <= JOBS
    for image in lock_images(config, images, root / "locks"):
        assert disk_needed(config, [dataclasses.replace(image, small=True)]) < DISK * 1e9, (
            image.spec.id
        )
    build = next(s for s in steps(GITHUB / "workflows" / "prove.yml") if "--stale" in str(s))
    for platform in config.platforms:
        own = [spec for spec in images if spec.platform == platform]
        assert len(own) * IMAGE <= int(build["timeout-minutes"]) < MINUTES
    # A night: the jobs that have a matrix once for each of its images.
    jobs = read(GITHUB / "workflows" / "nightly.yml")["jobs"]
    select = re.search(r"--select '(.+?)'", scripts("nightly")["images"])
    assert select
    scanned = [spec for spec in images if fnmatchcase(spec.id, select[1])]
    count = {name: len(scanned) if "strategy" in job else 1 for name, job in jobs.items()}
    assert sum(int(job["timeout-minutes"]) * count[name] for name, job in jobs.items()) <= MINUTES


def scripts(name: str) -> dict[str, str]:
    """What a workflow runs, by the name of its step, or its id."""
    path = GITHUB / "workflows" / f"{name}.yml"
    return {s.get("name", s.get("id", s["run"])): s["run"] for s in steps(path) if "run" in s}


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script as GitHub does, in a repository with a commit and stand-ins for commands."""
    repository, tools = tmp_path / "repository", tmp_path / "tools"
    for folder in (repository / "locks", repository / "scripts", tools):
        folder.mkdir(parents=True)
    named = {repository / "inv": 'echo "inv $*" >>"$CALLS"\n'}
    named[tools / "gh"] = 'echo "gh $*" >>"$CALLS"\n[[ $* != "release list"* ]] || echo "$LAST"\n'
    for path, text in named.items():
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)
    for name in ("commit-to-branch", "lock-changes", "open-pull-request"):
        shutil.copy(ROOT / "scripts" / name, repository / "scripts")
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CALLS": str(tmp_path / "calls"),
        **{name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")},
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{
            f"GIT_{who}_{what}": "a@b"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }

    def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=repository,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )

    begin = (
        f"git init -q . && git add . && git commit -qm x && git init -q --bare {tmp_path}/remote"
    )
    assert run(f"{begin} && git remote add origin {tmp_path}/remote").returncode == 0
    return run


Run = Callable[..., subprocess.CompletedProcess[str]]
COMMIT = 'scripts/commit-to-branch locks/update "Lock newer inputs" locks'


def test_without_a_change_there_is_no_commit(runner: Run, tmp_path: Path) -> None:
    assert runner(COMMIT).returncode == 0
    assert not (tmp_path / "GITHUB_OUTPUT").exists()


def test_a_change_is_committed_pushed_and_checked(runner: Run, tmp_path: Path) -> None:
    done = runner(f"echo newer >locks/a.json && {COMMIT}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "newer=true\n"
    assert runner("scripts/open-pull-request locks/update Title body.md").returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert "gh pr create --head locks/update" in calls
    assert calls.endswith("gh workflow run ci.yml --ref locks/update\n")
    assert runner(f"git -C {tmp_path}/remote rev-parse locks/update").returncode == 0


@pytest.mark.parametrize(
    ("name", "tried"), [("nightly", ("check", "upgrade", "renew")), ("prove", ("build",))]
)
def test_a_step_that_may_fail_fails_its_job_in_the_end(name: str, tried: tuple[str, ...]) -> None:
    """The pull request is opened all the same."""
    all_ = steps(GITHUB / "workflows" / f"{name}.yml")
    assert {step["id"] for step in all_ if step.get("continue-on-error") == "true"} == {*tried}
    [last] = [step for step in all_ if "exit 1" in step.get("run", "")]
    assert "!cancelled()" in last["if"]
    assert all(f"steps.{step}.outcome != 'success'" in last["if"] for step in tried)


def test_the_notes_of_a_release_are_what_changed_in_the_locks(runner: Run, tmp_path: Path) -> None:
    step = scripts("release")["Say what changed in the locks"]
    assert runner(step).returncode == 0
    notes = tmp_path / "repository" / "notes.md"
    assert notes.read_text() == "The first release.\n"
    for name, version in (("v1", "1.0"), ("v2", "2.0~rc1")):
        for lock in ("base-a", "base-b"):
            versions = {"a": "1", "lib": version, "same": "1"}
            versions |= {"zone": "1"} if (name, lock) == ("v1", "base-b") else {}
            made = DebLock(
                name=lock,
                date=dt.date(2026, 1, 1),
                request=(),
                debs=tuple(
                    LockedDeb(name=n, version=v, archive="x", path=f"{n}.deb", sha256="0" * 64)
                    for n, v in versions.items()
                ),
            )
            (tmp_path / "repository" / "locks" / f"{lock}.json").write_text(dumps(made))
        done = runner(f"git add . && git commit -qm {name} && git tag {name}")
        assert done.returncode == 0, done.stderr
    assert runner(step, LAST="v1").returncode == 0
    assert notes.read_text().splitlines() == [
        "Inputs that changed since v1:",
        "",
        "- lib 1.0 -> 2.0~rc1 (base-a, base-b)",
        "- zone 1 -> none (base-b)",
    ]


@pytest.mark.parametrize(
    ("count", "results", "code"),
    [
        ("42", "success success success", 0),
        ("0", "success skipped skipped", 0),
        ("42", "success failure success", 1),
        ("42", "success success failure", 1),
        ("42", "success skipped skipped", 1),
        ("", "failure skipped skipped", 1),
        ("42", "success cancelled success", 1),
    ],
)
def test_nothing_is_released_after_a_failure(
    runner: Run, count: str, results: str, code: int
) -> None:
    matrix_, image, again = results.split()
    [step] = [
        s for s in steps(GITHUB / "workflows" / "release.yml") if "RESULTS" in s.get("env", {})
    ]
    said = step["env"]["RESULTS"]
    for name, result in (("matrix", matrix_), ("image", image), ("reproduce", again)):
        said = said.replace(f"${{{{ needs.{name}.result }}}}", result)
    assert runner(step["run"], COUNT=count, RESULTS=said).returncode == code


def test_a_release_leaves_its_clone_clean() -> None:
    """The push writes the commit into the datasheet, "-dirty" beside a file that git does not know."""
    run = next(
        s["run"] for s in steps(GITHUB / "workflows" / "release.yml") if s.get("id") == "push"
    )
    [file] = re.findall(r"inv push .*>(\S+)", run)
    ignored = ["git", "-C", str(ROOT), "check-ignore", "--no-index", "--quiet", file]
    assert subprocess.run(ignored, check=False).returncode == 0


def test_a_release_takes_nothing_from_a_cache() -> None:
    """Every branch of the repository can fill a cache: what it put there would be signed as ours."""
    release = json.dumps(read(GITHUB / "workflows" / "release.yml"))
    assert re.findall(r"\S*cache\S*", release, re.IGNORECASE) == []
    used = [step.get("uses", "") for action in ACTIONS for step in steps(action)]
    assert not [name for name in used if "cache" in name]
