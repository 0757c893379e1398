"""The project's workflows, and GitHub's runner in small: it runs their steps from their own text.

What an `if` means, and what a shell is called with, is GitHub's:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
SHELLS = {
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
    "": ("bash", "-e"),  # where none is named
}
SUCCESS, FAILURE, SKIPPED = "success", "failure", "skipped"


def read(path: Path) -> Any:
    """A workflow or an action, whose values are all texts."""
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # noqa: S506  texts only


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow or an action."""
    document = read(path)
    groups = [document["runs"]] if "runs" in document else document["jobs"].values()
    return [step for group in groups for step in group["steps"]]


def name_of(step: Mapping[str, Any]) -> str:
    """What a step is called here: its name, its action without the version, its id, or its script."""
    action = step.get("uses", "").partition("@")[0]
    return str(step.get("name") or action or step.get("id") or step["run"])


class Context(dict[str, Any]):
    """A context of expressions. Unlike GitHub's, it refuses a name that it does not have."""

    def __getattr__(self, name: str) -> Any:
        """The value of `context.name`; AttributeError where there is none."""
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(name) from None
        return Context(value) if isinstance(value, dict) else value


class Settings(Context):
    """Values that a repository or a person may set, or leave empty."""

    def __missing__(self, name: str) -> str:
        return ""


_OUTPUT = re.compile(r'echo "(\w+)=')
_BRACES = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_OPERATORS = {"&&": " and ", "||": " or ", "!=": "!=", "!": " not "}


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """The value of an expression without its braces.

    Of Python, "and", "or" and "not" have the values and, as they are used here, the order of
    GitHub's "&&", "||" and "!".
    """
    parts = re.split(r"('[^']*')", expression.strip())
    parts[::2] = [
        re.sub(r"&&|\|\||!=?", lambda operator: _OPERATORS[operator[0]], part)
        for part in parts[::2]
    ]
    names = {"fromJSON": json.loads, **contexts}
    return eval("".join(parts).strip(), {"__builtins__": {}}, names)  # noqa: S307


def expand(text: str, contexts: Mapping[str, Any]) -> Any:
    """A value of a workflow: what its expression gives, or its text with those that are in it."""
    if whole := re.fullmatch(r"\$\{\{((?:(?!\}\}).)*)\}\}", text.strip(), re.DOTALL):
        return evaluate(whole[1], contexts)
    return _BRACES.sub(lambda found: str(evaluate(found[1], contexts)), text)


@dataclass
class Job:
    """One job while it runs: its folder, what steps see, and what became of them."""

    name: str
    folder: Path
    contexts: dict[str, Any]
    env: dict[str, str]
    shell: str
    result: str = SUCCESS
    log: str = ""

    def runs(self, condition: str) -> bool:
        """Whether a step or job with this `if` runs; without a word on failures, not after one."""
        condition = condition.strip().removeprefix("${{").removesuffix("}}")
        if self.result != SUCCESS and "cancelled()" not in condition:
            return False
        return not condition or bool(evaluate(condition, self.contexts))


# What stands in for an action: it gets the job and the expanded `with`.
Action = Callable[[Job, Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs workflows of a checkout: each job in a folder of its own, one after the other.

    `root` has the workflows. `actions` stand in for what is used, by name. `env(job)` is that of a
    job's machine, `contexts` are github, vars, inputs and secrets. `left_out` are scripts that are
    not run. `there` replaces in every text what cannot be reached. `ran` gets the name of each step
    that ran, with its job.
    """

    root: Path
    folder: Path
    env: Callable[[str], Mapping[str, str]]
    contexts: Mapping[str, Any]
    actions: Mapping[str, Action]
    left_out: tuple[str, ...] = ()
    there: Callable[[str], str] = str
    ran: set[tuple[str, str]] = field(default_factory=set)

    def workflow(
        self, name: str, only: Callable[[str, Mapping[str, Any]], bool] = lambda *_: True
    ) -> dict[str, list[Job]]:
        """Run a workflow; the jobs that ran, by the name that the workflow gives them.

        `only(job, combination)` says which jobs of a matrix are run; the others count as successes.
        """
        document = yaml.load(
            self.there((self.root / ".github/workflows" / f"{name}.yml").read_text()),
            Loader=yaml.BaseLoader,  # noqa: S506  texts only
        )
        done: dict[str, list[Job]] = {}
        needs: dict[str, Any] = {}
        for key, job in document["jobs"].items():
            wanted = job.get("needs", [])
            wanted = [wanted] if isinstance(wanted, str) else wanted
            before = {n: needs[n] for n in wanted}
            seen = {"needs": Context(before), "cancelled": lambda: False}
            gate = Job(key, self.folder, {**self.contexts, **seen}, {}, "")
            if any(need["result"] != SUCCESS for need in before.values()):
                gate.result = FAILURE
            done[key] = []
            if not gate.runs(job.get("if", "")):
                needs[key] = {"result": SKIPPED, "outputs": {}}
                continue
            outputs: dict[str, str] = {}
            for matrix in self._combinations(job, gate.contexts):
                if only(key, matrix):
                    contexts = {**gate.contexts, "matrix": Context(matrix)}
                    made = self._job((key, len(done[key])), document, job, contexts)
                    done[key].append(made)
                    print(f"=== {key}: {made.result}\n{made.log}")  # noqa: T201  a test's output
                    declared = job.get("outputs", {}) if made.result == SUCCESS else {}
                    outputs |= {n: expand(text, made.contexts) for n, text in declared.items()}
            failed = any(made.result == FAILURE for made in done[key])
            needs[key] = {"result": FAILURE if failed else SUCCESS, "outputs": outputs}
        return done

    def _combinations(
        self, job: Mapping[str, Any], contexts: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        matrix = job.get("strategy", {}).get("matrix", {})
        matrix = expand(matrix, contexts) if isinstance(matrix, str) else matrix
        if "include" in matrix:
            yield from matrix["include"]
        elif matrix:
            [(name, values)] = matrix.items()
            yield from ({name: value} for value in values)
        else:
            yield {}

    def _job(
        self,
        name: tuple[str, int],
        document: Mapping[str, Any],
        job: Mapping[str, Any],
        contexts: Mapping[str, Any],
    ) -> Job:
        folder = self.folder / "-".join(map(str, name))
        (folder / "work").mkdir(parents=True)
        files = {n: str(folder / n) for n in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
        env = {**self.env(name[0]), **files, "DOCKER_CONFIG": str(folder / "docker")}
        seen = {**contexts, "steps": Context(), "env": Context()}
        shell = document.get("defaults", {}).get("run", {}).get("shell", "")
        made = Job(name[0], folder / "work", seen, env, shell)
        for values in (document.get("env", {}), job.get("env", {})):
            expanded = {n: str(expand(text, seen)) for n, text in values.items()}
            env |= expanded
            seen["env"] |= expanded
        expand(job["runs-on"], seen)
        for step in job["steps"]:
            self._step(made, step)
        return made

    def _step(self, job: Job, step: Mapping[str, Any]) -> None:
        # What a script may leave out is empty, as on GitHub; a name that it never sets is refused.
        outcome, outputs = SKIPPED, dict.fromkeys(_OUTPUT.findall(step.get("run", "")), "")
        if job.runs(step.get("if", "")):
            output = Path(job.env["GITHUB_OUTPUT"])
            output.unlink(missing_ok=True)
            outcome = self._do(job, step)
            if output.exists():
                lines = output.read_text().splitlines()
                outputs |= dict(line.split("=", 1) for line in lines)
        if "id" in step:
            job.contexts["steps"][step["id"]] = {"outcome": outcome, "outputs": outputs}
        if outcome == FAILURE and step.get("continue-on-error") != "true":
            job.result = FAILURE

    def _do(self, job: Job, step: Mapping[str, Any]) -> str:
        name = name_of(step)
        self.ran.add((job.name, name))
        if name in self.left_out:
            return SUCCESS
        if action := step.get("uses", "").partition("@")[0]:
            if action.startswith("./"):
                for inner in steps(job.folder / action / "action.yml"):
                    self._step(job, inner)
            else:
                values = step.get("with", {}).items()
                self.actions[action](job, {n: str(expand(v, job.contexts)) for n, v in values})
            return SUCCESS
        script = job.folder.parent / "script.sh"
        script.write_text(self.there(str(expand(step["run"], job.contexts))))
        own = {n: str(expand(text, job.contexts)) for n, text in step.get("env", {}).items()}
        done = subprocess.run(
            [*SHELLS[step.get("shell", job.shell)], str(script)],
            cwd=job.folder,
            env={**job.env, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        job.log += f"--- {name}: {done.returncode}\n{done.stdout}"
        more = Path(job.env["GITHUB_ENV"])
        if more.exists():
            job.env |= dict(line.split("=", 1) for line in more.read_text().splitlines())
        return FAILURE if done.returncode else SUCCESS


def machine_environment() -> dict[str, str]:
    """This process's environment without what tests and this project set in it."""
    return {n: v for n, v in os.environ.items() if not n.startswith(("TORCH_IMAGES_", "PYTEST_"))}
