"""The workflows: valid, safe by a linter's measure, and true to the verbs that they call."""

from __future__ import annotations

import dataclasses
import importlib.util
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

import jsonschema
import pytest
import yaml

from torch_images.build.diskspace import disk_needed
from torch_images.build.plan import lock_images
from torch_images.cli.collection import VERBS
from torch_images.cli.parser import parse
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.redact import secrets

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
ACTIONS = sorted(GITHUB.glob("actions/*/action.yml"))
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-actions": ACTIONS,
    "dependabot": [GITHUB / "dependabot.yml"],
    "renovate": [ROOT / "renovate.json"],
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


def schema_problems(name: str, path: Path) -> list[str]:
    """What a schema that check-jsonschema brings says against a file."""
    spec = importlib.util.find_spec("check_jsonschema")
    assert spec
    assert spec.origin
    vendor = Path(spec.origin).parent / "builtin_schemas" / "vendor"
    schema = json.loads((vendor / f"{name}.json").read_text())
    document = {  # YAML 1.1 reads the key "on" as true
        "on" if key is True else key: value
        for key, value in yaml.safe_load(path.read_text()).items()
    }
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_valid_by_its_schema(schema: str) -> None:
    for path in SCHEMAS[schema]:
        assert schema_problems(schema, path) == [], path


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


def test_only_what_is_secret_has_the_name_of_a_secret() -> None:
    """A verb would print *** in place of such a variable's value."""
    given = {k: v for path in WORKFLOWS for s in steps(path) for k, v in s.get("env", {}).items()}
    named = {name for name in given if list(secrets({name: "cm9x2k"}, ()))}
    assert {name for name in named if "secrets." not in given[name]} == set()
    assert "GH_TOKEN" in named


@pytest.mark.parametrize("name", ["nightly", "prove"])
def test_a_pull_request_is_checked(name: str) -> None:
    """What GITHUB_TOKEN pushes or opens starts no workflow, except by a dispatch."""
    assert "workflow_dispatch" in read(GITHUB / "workflows" / "ci.yml")["on"]
    jobs = read(GITHUB / "workflows" / f"{name}.yml")["jobs"].values()
    [job] = [job for job in jobs if "pull-requests" in job["permissions"]]
    assert job["permissions"]["actions"] == "write"
    assert any("scripts/open-pull-request" in step.get("run", "") for step in job["steps"])


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
    words = shlex.split(re.sub(r"\$\{\w+:\+(\S+)\}", r"\1", line), comments=True)
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


# https://docs.github.com/en/actions/reference/limits: jobs of a matrix, minutes of a job.
JOBS, MINUTES = 256, 360
# What a runner has where .github/actions/engine puts what is large, of 70 GB: GB.
DISK = 60
# Minutes for an image, from nothing, with checks: three times what docs/performance.md measured.
IMAGE = 6


def test_the_catalogue_fits_into_what_github_gives(real: Config) -> None:
    images = matrix(real)
    assert len(images) <= JOBS
    for image in lock_images(real, images, ROOT / "locks"):
        small = dataclasses.replace(image, small=True)
        assert disk_needed(real, [small]) < DISK * 1e9, image.spec.id
    build = next(s for s in steps(GITHUB / "workflows" / "prove.yml") if "--stale" in str(s))
    for platform in real.platforms:
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
    files = {repository / "inv": 'echo "inv $*" >>"$CALLS"\necho "${ANSWER:-}"\n'}
    files[tools / "gh"] = 'echo "gh $*" >>"$CALLS"\n[[ $* != "release list"* ]] || echo "$LAST"\n'
    for path, text in files.items():
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
    ("count", "results", "code"),
    [
        ("42", "success success success", 0),
        ("0", "success skipped skipped", 0),
        ("42", "success failure success", 1),
        ("", "failure skipped skipped", 1),
        ("42", "success cancelled success", 1),
    ],
)
def test_release_fails_unless_every_job_passed(
    runner: Run, count: str, results: str, code: int
) -> None:
    matrix_, image, again = results.split()
    [step] = [
        s for s in steps(GITHUB / "workflows" / "release.yml") if "RESULTS" in s.get("env", {})
    ]
    template = step["env"]["RESULTS"]
    for name, result in (("matrix", matrix_), ("image", image), ("reproduce", again)):
        template = template.replace(f"${{{{ needs.{name}.result }}}}", result)
    assert runner(step["run"], COUNT=count, RESULTS=template).returncode == code


@pytest.mark.parametrize(
    ("axes", "select"), [({}, "*"), ({"VARIANT": "pod", "COMPAT": "true"}, "one")]
)
def test_a_release_has_the_images_of_a_glob_or_one_by_its_axes(
    runner: Run, tmp_path: Path, axes: dict[str, str], select: str
) -> None:
    none = dict.fromkeys(("NAMED", "CUDA", "ARCH", "VARIANT", "COMPAT"), "")
    answer = json.dumps({"images": [{"id": "one"}], "image": []})
    done = runner(scripts("release")["images"], SELECT="*", ANSWER=answer, **none | axes)
    assert done.returncode == 0, done.stderr
    *plans, listing = (tmp_path / "calls").read_text().splitlines()
    assert listing.endswith(f"--unpublished --compression small --select {select}")
    assert ["--variant pod --compat --dry-run" in plan for plan in plans] == [True] * bool(axes)


@pytest.mark.parametrize(("private", "left"), [("true", ["a", "b"]), ("false", ["a"])])
def test_a_public_repository_does_not_publish_the_compiler(
    runner: Run, tmp_path: Path, private: str, left: list[str]
) -> None:
    none = dict.fromkeys(("NAMED", "CUDA", "ARCH", "VARIANT", "COMPAT"), "")
    images = [{"id": "a", "variant": "runtime"}, {"id": "b", "variant": "pod"}]
    answer = json.dumps({"images": images})
    step = scripts("release")["images"]
    done = runner(step, SELECT="*", ANSWER=answer, PRIVATE=private, **none)
    assert done.returncode == 0, done.stderr
    assert ("::warning::" in done.stdout) == (len(left) == 1)
    published, count = (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()
    assert [one["id"] for one in json.loads(published.partition("=")[2])["image"]] == left
    assert count == f"count={len(left)}"


def test_release_signs_the_name_that_was_pushed(runner: Run, tmp_path: Path) -> None:
    """An owner with capitals: only `push` makes them small."""
    sheet = {"references": ["ghcr.io/myorg/torch-cu130:1-x"], "digest": "sha256:1", "indexes": []}
    script = f"mkdir -p build/datasheets; touch build/datasheets/1.md\n{scripts('release')['Push']}"
    done = runner(script, IMAGE="one", ANSWER=json.dumps(sheet))
    assert done.returncode == 0, done.stderr
    output = (tmp_path / "GITHUB_OUTPUT").read_text()
    assert output == "name=ghcr.io/myorg/torch-cu130\ndigest=sha256:1\nindex=\nlatest=\n"
    for path in WORKFLOWS:  # the variable is for ./inv alone, which lowers it
        assert not re.search(r"(env\.|\$)TORCH_IMAGES_REGISTRY", path.read_text())


def test_the_schedule_publishes_only_what_a_variable_names() -> None:
    release = read(GITHUB / "workflows" / "release.yml")
    assert "schedule" in release["on"]
    assert release["jobs"]["matrix"]["if"] == (
        "${{ github.event_name != 'schedule' || vars.IMAGES != '' }}"
    )
    assert "needs.matrix.result != 'skipped'" in release["jobs"]["release"]["if"]


def test_a_release_takes_nothing_from_a_cache() -> None:
    """Every branch of the repository can fill a cache: what it put there would be signed as ours."""
    release = json.dumps(read(GITHUB / "workflows" / "release.yml"))
    release = release.replace("~/.cache/torch-images", "")  # what the job itself has made
    assert re.findall(r"\S*cache\S*", release, re.IGNORECASE) == []
    used = [step.get("uses", "") for action in ACTIONS for step in steps(action)]
    assert not [name for name in used if "cache" in name]
