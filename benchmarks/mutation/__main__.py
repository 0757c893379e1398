"""How many small faults in the code the unit tests find: `python -m benchmarks.mutation [MODULE]`.

mutmut makes the faults (mutants), one at a time, and runs the tests that reach the changed
function. It changes functions at the first level of a module and methods; what a module or class
says outside of them stays as it is. The project is staged for it: properties become methods that it
can change, and the modules of the start, which images have in one folder, lie at the top level.
Prints a table of scores, and each survivor as a change. Needs no Docker.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PROGRAMS = "scripts/image"
RUNTIME = f"{PROGRAMS}/runtime"

# The tests that are run for each module of torch_images/ or scripts/image/, files of tests/unit.
MODULES = {
    "config/matrix": ("matrix", "settings", "options", "tagging", "unlisted"),
    "config/types": ("settings", "config", "matrix", "tagging"),
    "fetch/checkout": ("checkout",),
    "host/git": ("checkout",),
    "host/network": ("network", "settings"),
    "jobs": ("jobs", "measure"),
    "fatbin": ("fatbin", "fatbin_guards"),
    "locks/image_lock": ("image_lock", "lock", "sources", "unlisted", "platforms"),
    "publish/push": ("push",),
    "publish/tag_rules": ("tagging", "push"),
    "runtime/decision": ("runtime", "decision"),
    "runtime/effect": ("runtime", "effect"),
}

# The same examples in every run, and no search for the smallest one that fails.
PROFILE = """
from hypothesis import Phase
settings.register_profile(
    "mutation", parent=settings.default, database=None, derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutation")
"""


@dataclass(frozen=True)
class Result:
    """What became of a module's mutants: how many there were, and the names of the survivors."""

    module: str
    total: int
    survivors: tuple[str, ...]

    @property
    def killed(self) -> int:
        """How many mutants made a test fail, or hang."""
        return self.total - len(self.survivors)

    @property
    def row(self) -> str:
        """The result as a row of a Markdown table."""
        share = 100 * self.killed / self.total
        numbers = (self.total, self.killed, len(self.survivors))
        return f"| {self.module} | {' | '.join(map(str, numbers))} | {share:.1f} % |"


def main() -> None:
    """Make and test the mutants of some modules or of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("module", nargs="*", choices=[[], *MODULES], help="else all")
    parser.add_argument(
        "--again", action="store_true", help="only what is new, and what survived the last time"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    options = parser.parse_args()
    results = []
    for module in options.module or MODULES:
        tested = options.again and unchanged(module)
        stage(module, again=options.again)
        if not tested:  # functions that are as they were keep what is known of their mutants
            mutmut(module, "run", f"--max-children={options.jobs}")
        left = survivors(module) if options.again else ()
        if left:
            mutmut(module, "run", f"--max-children={options.jobs}", *left)
        results.append(result(module))
    print("| module | mutants | killed | survivors | score |\n|---|--:|--:|--:|--:|")
    for found in results:
        print(found.row)
    names = tuple(name for found in results for name in found.survivors)
    print(Result("all", sum(found.total for found in results), names).row)
    for found in results:
        print(changes(found), end="")


def stage(module: str, *, again: bool) -> None:
    """Copy the project into a folder of its own, in the form that mutmut needs."""
    folder = WORK / module
    if not again:
        shutil.rmtree(folder, ignore_errors=True)
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    path, now = mutated(module), plain((ROOT / source(module)).read_text())
    for name in names:
        if (ROOT / name).is_file() and name != path:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "src").mkdir(exist_ok=True)
    for file in (ROOT / RUNTIME).glob("*.py"):
        if f"src/{file.name}" != path:
            shutil.copy2(file, folder / "src")
    if not (again and unchanged(module)):
        (folder / path).write_text(now)
    if again:
        (folder / "mutants/mutmut-stats.json").unlink(missing_ok=True)
    with (folder / "tests/unit/conftest.py").open("a") as conftest:
        conftest.write(PROFILE)
    settings = {
        "source_paths": ["torch_images", "src"],
        "only_mutate": [path],
        "also_copy": sorted({name.partition("/")[0] for name in names} - {"torch_images"}),
        "pytest_add_cli_args_test_selection": tests(module),
        # Tests leave processes behind on purpose, which are not for mutmut to wait for.
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
        "on_dependency_change": "ignore",
    }
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    project = folder / "pyproject.toml"
    text = project.read_text().replace(f'"{RUNTIME}"', '"src"')
    project.write_text(f"{text}\n[tool.mutmut]\n{''.join(lines)}")


def unchanged(module: str) -> bool:
    """Whether mutants of a module as it is now have been tested before."""
    path = WORK / module / mutated(module)
    meta = WORK / module / "mutants" / f"{mutated(module)}.meta"
    now = plain((ROOT / source(module)).read_text())
    return meta.exists() and path.read_text() == now


def source(module: str) -> str:
    """Where a module is in the project."""
    place = f"{PROGRAMS}/{module}.py"
    return place if (ROOT / place).exists() else f"torch_images/{module}.py"


def mutated(module: str) -> str:
    """Where a module is in the staged copy."""
    return source(module).replace(RUNTIME, "src")


def tests(module: str) -> list[str]:
    """The files of tests that are run for a module."""
    return [f"tests/unit/test_{name}.py" for name in MODULES[module]]


def plain(text: str) -> str:
    """A module whose properties are methods, made properties after their definition.

    mutmut leaves decorated methods as they are.
    """
    lines = text.splitlines()
    after: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Name) and decorator.id == "property":
                    lines[decorator.lineno - 1] = ""
                    after[node.end_lineno] = (
                        f"{' ' * node.col_offset}{node.name} = property({node.name})"
                    )
    return "".join(
        f"{line}\n" + (f"\n{after[number]}\n" if number in after else "")
        for number, line in enumerate(lines, 1)
    )


def mutmut(module: str, *arguments: str) -> str:
    """Run mutmut in the staged copy; what it says."""
    command = [sys.executable, str(Path(__file__).with_name("mutate.py")), *arguments]
    env = {**os.environ, "PYTHONPATH": str(tools())}
    done = subprocess.run(
        command,
        cwd=WORK / module,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{module}: mutmut failed: {done.stdout[-4000:]}")
    return done.stdout


def tools() -> Path:
    """The folder with mutmut, installed for this once: nothing else of the project needs it."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = WORK / f"tools-{digest}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(partial)]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
        subprocess.run([*command, "-r", str(REQUIREMENTS)], check=True)
        partial.rename(folder)
    return folder


def changes(found: Result) -> str:
    """The survivors of a module: the name of each and the lines that it changes."""
    if not found.survivors:
        return ""
    text = ""
    for line in mutmut(found.module, "show", *found.survivors).splitlines():
        if line.startswith("# "):
            text += f"\n{line.removeprefix('# ')}\n"
        elif line[:1] in {"-", "+"} and line[:3] not in {"---", "+++"}:
            text += f"{line}\n"
    return text


def codes(module: str) -> dict[str, int | None]:
    """How the tests ended for each mutant, as an exit code."""
    path = WORK / module / "mutants" / f"{mutated(module)}.meta"
    found: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
    return found


def survivors(module: str) -> tuple[str, ...]:
    """The mutants that no test found: tests passed, or none was run."""
    found = codes(module)
    unknown = Counter(code for code in found.values() if code not in (*KILLED, *SURVIVED))
    if unknown:
        raise SystemExit(f"{module}: mutants ended in an unknown way: {dict(unknown)}")
    return tuple(name for name, code in found.items() if code in SURVIVED)


# pytest: failed, broke, found no test; mutmut: no test reaches it, took too long (as it says it or
# as a signal). A fault that ends the process is one that is seen, too.
KILLED = (1, 2, 3, 36, 24, -24, 152, 255, -11, -9)
SURVIVED = (0, 5, 33, None)


def result(module: str) -> Result:
    """What became of a module's mutants."""
    return Result(module, len(codes(module)), survivors(module))


if __name__ == "__main__":
    main()
