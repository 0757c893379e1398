"""The workflows: valid, safe by a linter's measure, and true to the verbs that they call."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from invoke.parser import Parser

import tasks

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
ACTIONS = sorted(GITHUB.glob("actions/*/action.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-actions": ACTIONS,
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
}


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # noqa: S506  texts only


def steps(path: Path) -> list[dict[str, Any]]:
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


def test_there_is_something_to_test() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "nightly", "prove", "release", "weekly"]
    assert len(INVOKED) > 8


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


def test_the_linter_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / ".github" / "workflows" / "bad.yml"
    bad.parent.mkdir(parents=True)
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    bad.write_text(re.sub(r"@[0-9a-f]{40} # .*", "@main", text))
    command = [str(Path(sys.executable).parent / "zizmor"), "--offline", str(bad)]
    assert subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name + path.stem
)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    for line in path.read_text().splitlines():
        if match := re.search(r"uses: (\S+)(.*)", line):
            name, rest = match.groups()
            if name.startswith("./"):
                assert (ROOT / name / "action.yml").exists()
            else:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)
                assert re.fullmatch(r" # v\d+\.\d+\.\d+", rest)


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
                "release": {"packages", "id-token", "attestations"},
                "nightly": {"contents", "pull-requests", "actions"},
                "prove": {"contents", "pull-requests", "actions"},
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
        calls = any(re.search(r"(^|\s)gh ", line) for line in lines(step.get("run", "")))
        assert ("GH_TOKEN" in environment) == calls, step
        assert not SECRET.search(str(environment)) or calls, step
        assert not SECRET.search(step.get("run", ""))


@pytest.mark.parametrize("name", ["nightly", "prove"])
def test_a_pull_request_is_checked(name: str) -> None:
    """What GITHUB_TOKEN pushes or opens starts no workflow, except by a dispatch."""
    assert "workflow_dispatch" in read(GITHUB / "workflows" / "ci.yml")["on"]
    workflow = GITHUB / "workflows" / f"{name}.yml"
    jobs = read(workflow)["jobs"].values()
    [job] = [job for job in jobs if "pull-requests" in job["permissions"]]
    assert job["permissions"]["actions"] == "write"
    said = [line for step in steps(workflow) for line in lines(step.get("run", ""))]
    dispatch = said.index('gh workflow run ci.yml --ref "$BRANCH"')
    assert dispatch > said.index('git push --force origin "$BRANCH"')


def test_advisories_are_looked_up_every_night() -> None:
    """What is new and critical fails; a statement in security/vex.json makes it known."""
    job = read(GITHUB / "workflows" / "nightly.yml")["jobs"]["advisories"]
    assert job["permissions"] == {"contents": "read"}
    [said] = [line for name, line in INVOKED if name == "nightly.yml" and " scan " in line]
    assert "--lock --fail-on critical" in said
    assert 'exit "$failed"' in lines(job["steps"][-1]["run"])[-1]


def test_the_slow_tests_run_every_week() -> None:
    document = read(GITHUB / "workflows" / "weekly.yml")
    [when] = document["on"]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", when["cron"])
    assert [line for name, line in INVOKED if name == "weekly.yml"] == ["./inv --yes test --all"]


def test_all_that_is_large_lies_on_the_larger_disk() -> None:
    """Some runners have 14 GB at / and 70 GB at /mnt.

    Images lie in containerd's folder, not in Docker's data-root.
    """
    script = "".join(step["run"] for step in steps(GITHUB / "actions" / "engine" / "action.yml"))
    assert '"data-root": "/mnt/' in script
    assert 'root = "/mnt/containerd"\' | sudo tee /etc/containerd/config.toml' in script
    assert "sudo systemctl restart containerd docker" in lines(script)
    [made] = [line for line in lines(script) if line.startswith("sudo install --directory --owner")]
    for name in ("TORCH_IMAGES_CACHE", "TMPDIR"):
        [folder] = re.findall(rf"{name}=(/mnt/\S+)", script)
        assert folder in made.split()


@pytest.mark.parametrize(("name", "line"), INVOKED)
def test_every_invoke_line_parses(name: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("./inv") + 1 :]
    stops = [i for i, word in enumerate(words) if re.match(r"[|&;]|\d?>", word)]
    words = words[: min(stops, default=len(words))]
    words = words[1:] if words[0] == "--yes" else words
    parsed = Parser(contexts=tasks.namespace.to_contexts()).parse_argv(words)
    [context] = parsed
    assert context.name == words[0]
    assert not parsed.unparsed


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name + path.stem
)
def test_scripts_pass_shellcheck(path: Path, tmp_path: Path) -> None:
    for number, step in enumerate(steps(path)):
        if "run" not in step:
            continue
        script = tmp_path / f"{number}.sh"
        script.write_text("#!/usr/bin/env bash\nset -eo pipefail\n" + step["run"])
        command = [str(Path(sys.executable).parent / "shellcheck"), str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_releases_are_locked_and_have_compat() -> None:
    builds = {name: line for name, line in INVOKED if " build " in line}
    assert sorted(builds) == ["prove.yml", "release.yml"]
    for build in builds.values():
        assert "--locked" in build
        assert "--compat required" in build
