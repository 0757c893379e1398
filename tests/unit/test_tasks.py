"""The verbs as a user meets them: exit codes, one line, no traceback."""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from docker.errors import ImageNotFound
from invoke.exceptions import Exit
from invoke.parser import Parser

import tasks
from tests.releases import T130
from tests.unit.fakes import invoke
from torch_images.cli import verb as cli
from torch_images.cli.collection import GROUPS
from torch_images.cli.options import Options
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import NetworkError, one_line


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("build --torch-source .", "source wheel compiles no torch; add --source fork"),
        ("wheels --source wheel", "source wheel compiles nothing; its wheels are published"),
        ("build --source fork --jobs=-1", "--jobs '-1' is not a number; give 1 or more"),
        ("wheels --slice 90", "--slice '90' is not a duration; give one such as 30s, 90m or 2h"),
        ("wheels --share 3/2", "--share '3/2' is not a share; give 1/2 to one builder and 2/2"),
        ("wheels --share 1/2", "--share needs a compile cache that the builders share; set"),
        ("wheels --slice 1h --no-cache", "--no-cache keeps nothing for the next build; leave"),
        ("push x --retries ٣", "--retries '٣' is not a number; give 0 or more"),
        (
            "bench x --gpus ²",
            "--gpus \\xb2 is not a choice of GPUs; give all, 2, or device=0,1; or ",
        ),
        ("build --nonsense", "unknown option '--nonsense'; "),
        ("build --cudaa 13.0", "unknown option '--cudaa'; did you mean '--cuda'?"),
        ("bulid", "unknown word 'bulid'; did you mean 'build'?"),
        ("build --cuda", "--cuda needs a value; see `invoke --help build`"),
        ("pick", "'pick' needs --gpu and --driver: name of the GPU,"),
        ("pick H100", "'pick' needs --driver: the host's driver as nvidia-smi prints it,"),
        ("build --cuda 13 --dry-run", "unknown cuda '13'; did you mean '13.0'?"),
        ("bench-report /dev/zero/x", "error: "),
        ("build --dry-run --mirror http://[::1", "error: --mirror is not a URL; correct it"),
        ("--help nonsense", "unknown word 'nonsense'; "),
        ("wheels --progress fancy", "unknown progress 'fancy'; known: auto, plain, tty"),
        ("lock --select nothing", "no lock matches 'nothing'; known: base-bookworm, "),
        ("matrix --select nothing*", "no image matches 'nothing*'"),
    ],
)
def test_user_errors_are_one_line(root: Path, words: str, text: str) -> None:
    done = invoke(root, *words.replace("'", "").split(), DOCKER_HOST="unix:///none")
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def process(root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a user's shell would."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=root,
        env={**os.environ, "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-x", "'-x'"),
        ("--list-format odd --list", "error: unknown list format 'odd'; known: flat, nested, json"),
        ("--config /none matrix", "error: none: No such file or directory; "),
    ],
)
def test_options_before_the_verb(root: Path, words: str, told: str) -> None:
    done = invoke(root, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("program", ["invoke", "torch_images"])
def test_both_programs_fail_alike_and_spell_what_a_terminal_cannot(
    root: Path, tmp_path: Path, program: str
) -> None:
    done = process(root, program, "bulid")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown word 'bulid'; did you mean 'build'?")
    words = ("render", f"cu130-torch{T130}-trixie-runtime", "--output", f"{tmp_path}/é")
    done = process(root, program, *words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("/\\xe9\n")


VERBS = sorted(tasks.namespace.tasks)


@pytest.mark.parametrize("name", VERBS)
def test_no_option_has_a_short_form(name: str) -> None:
    """A letter would mean another thing in each verb; Invoke makes them up from what is free."""
    [context] = [c for c in tasks.namespace.to_contexts() if c.name == name]
    assert [flag for flag in context.flags if not re.fullmatch(r"--[a-z][a-z-]+", flag)] == []


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_ends_with_an_example_that_can_be_read(name: str) -> None:
    words, example = (inspect.getdoc(tasks.namespace[name]) or "").split("\n\nExample:\n")
    assert words.strip().endswith(".")
    parser = Parser(contexts=tasks.namespace.to_contexts())
    [context] = parser.parse_argv(shlex.split(example))
    assert context.name == name
    assert not context.missing_positional_args


def test_verbs_are_listed_in_the_order_of_the_flow(root: Path) -> None:
    done = invoke(root, "--list")
    assert re.findall(r"^(\w+):$", done.stdout, re.MULTILINE) == list(GROUPS)
    listed = re.findall(r"^  ([a-z-]+) ", done.stdout, re.MULTILINE)
    assert listed == [v.name.replace("_", "-") for verbs in GROUPS.values() for v in verbs]
    assert sorted(listed) == VERBS


def test_help_names_the_values_of_images_yaml(root: Path, tmp_path: Path) -> None:
    text = " ".join(process(root, "invoke", "--help", "build").stdout.split())
    assert "source of torch; one of wheel, fork --" in text
    assert "CUDA version; one of 12.8, 13.0, 13.2 (default: 13.0) --" in text
    broken = tmp_path / "images.yaml"
    broken.write_text("{")
    done = process(root, "invoke", "--config", str(broken), "--help", "build")
    assert (done.returncode, done.stderr) == (0, "")
    assert "one of" not in done.stdout


def test_another_file_of_images(root: Path, tmp_path: Path) -> None:
    """By --config and by its variable; its locks lie beside it."""
    text = (root / "images.yaml").read_text()
    named = tmp_path / "mine.yaml"
    named.write_text(text.replace("owner: torch-images", "owner: somebody"))
    pick = ("pick", "--gpu", "RTX 5090", "--driver", "580", "--json")
    done = invoke(root, "--config", str(named), *pick)
    assert done.returncode == 3
    assert "locks" in done.stderr
    shutil.copytree(root / "locks", tmp_path / "locks")
    for words, variables in (
        (("--config", str(named)), {}),
        ((), {"TORCH_IMAGES_CONFIG": str(named)}),
    ):
        done = invoke(root, *words, *pick, **variables)
        assert done.returncode == 0, done.stderr
        assert "ghcr.io/somebody/torch-cu130" in done.stdout
    done = invoke(root, "--config", str(tmp_path / "none.yaml"), "matrix")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_hint_names_few_of_many(root: Path) -> None:
    done = invoke(root, "render", f"cu130-sm12-torch{T130}-trixie-runtime")
    assert len(done.stderr) < 400
    assert re.search(r" and \d+ more$", done.stderr.strip())
    for words in (("render", "x" * 9000), ("build", "--cuda", "x" * 9000)):
        done = invoke(root, *words)
        assert done.returncode == 2
        assert len(done.stderr) < 500


def test_no_engine(root: Path) -> None:
    done = invoke(root, "build", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "error: no Docker Engine at unix:///nonexistent/docker.sock: no answer; "
        "start it; in a clone of the project, scripts/setup-engine sets one up"
    )


def test_a_full_disk_is_one_line() -> None:
    def fill_up(_: Options) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/file")

    with pytest.raises(Exit) as caught:
        cli.verb(Options)(fill_up).body(None)
    assert caught.value.code == 5
    assert caught.value.message == (
        "error: the disk is full (/somewhere/file); free some space and try again"
    )


def test_a_path_that_cannot_be_used_is_one_line(root: Path) -> None:
    long = "x" * 300
    for words, variable in (
        (("bench-compare", long, "h100"), "TORCH_IMAGES_NONE"),
        (("build", "--dry-run"), "SSL_CERT_FILE"),
        (("build", "--dry-run"), "TORCH_IMAGES_LOCKS"),
    ):
        done = invoke(root, *words, **{variable: long})
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.endswith("cannot be used: File name too long; name another path\n")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ImageNotFound("gone", explanation="No such image: x\n"),
            "the engine refused: No such image: x; ",
        ),
        (
            requests.ReadTimeout("silent for 600 s"),
            "engine connection lost: silent for 600 s; ",
        ),
    ],
)
def test_what_the_engine_refuses_is_one_line(error: Exception, told: str) -> None:
    """A tag removed meanwhile, an engine that is restarted: whatever docker-py raises."""

    def ask(_: Options) -> None:
        importlib.import_module("torch_images.host.engine")  # as every verb that asks one does
        raise error

    with pytest.raises(Exit) as caught:
        cli.verb(Options)(ask).body(None)
    assert caught.value.code == 4
    assert str(caught.value.message).startswith(f"error: {told}")


def test_any_other_error_shows_where_it_is_from() -> None:
    def fail(_: Options) -> None:
        raise FileNotFoundError("somewhere")

    with pytest.raises(FileNotFoundError):
        cli.verb(Options)(fail).body(None)


def test_matrix_as_json(root: Path, config: Config) -> None:
    """All images of the catalogue, those that a glob names, and those of one platform."""
    whole = json.loads(invoke(root, "matrix", "--json").stdout)["image"]
    assert [image["id"] for image in whole] == [spec.id for spec in matrix(config)]
    done = invoke(root, "matrix", "--json", "--select", "cu130-sm*")
    named = json.loads(done.stdout)["image"]
    assert named == [image for image in whole if image["id"].startswith("cu130-sm")] != []
    for platform in ("linux/amd64", "linux/arm64"):
        done = invoke(root, "matrix", "--json", "--platform", platform)
        found = json.loads(done.stdout)["image"]
        assert found == [image for image in whole if image["platform"] == platform] != []
    assert (
        json.loads(invoke(root, "matrix", "--json", "--platform", "all").stdout)["image"] == whole
    )


PROOFS = (("tested on 20",), ("not tested", "last tested on"))


def test_render_prints_or_writes(root: Path, tmp_path: Path) -> None:
    image = f"cu130-sm120-torch{T130}-trixie-runtime"
    printed = invoke(root, "render", image).stdout
    invoke(root, "render", image, "--output", str(tmp_path / "context"))
    assert printed == (tmp_path / "context" / "Dockerfile").read_text() + "\n"


def test_dry_run_changes_nothing(root: Path, tmp_path: Path) -> None:
    done = invoke(
        root, "build", "--dry-run", DOCKER_HOST="unix:///none", TORCH_IMAGES_CACHE=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert f"would build cu130-torch{T130}-trixie-runtime" in done.stdout
    assert "docker buildx bake" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(root: Path, tmp_path: Path) -> None:
    words = ("build", "--dry-run", "--json", "--cuda", "13.0", "--source", "fork", "--arch", "12.0")
    done = invoke(root, *words, DOCKER_HOST="unix:///none", TORCH_IMAGES_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [image] = told["images"]
    assert image["id"] == "cu130-sm120-fork-trixie-runtime"
    assert image["compiles"][0].startswith("compiles triton ")
    assert told["command"][:3] == ["docker", "buildx", "bake"]
    assert told["disk"] > 10**9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("matrix --registry ghcr.io/me", "--registry has an effect only with --unpublished"),
        ("pick --list --torch 2.13", "--list prints every known GPU; leave --torch out"),
        ("build --stale --json", "--stale prints a line for each image; leave --json out"),
        ("test --all --fast", "--all, --fast and --real-source exclude each other"),
    ],
)
def test_an_option_without_effect_is_refused(root: Path, words: str, told: str) -> None:
    done = invoke(root, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {told}")
    assert len(done.stderr.splitlines()) == 1


def test_the_matrix_says_what_is_proved(root: Path) -> None:
    """Each image by the ledger; --untested leaves the tested ones out."""
    words = ("matrix", "--json", "--select", "cu13*-runtime")
    told = json.loads(invoke(root, *words).stdout)["image"]
    left = json.loads(invoke(root, *words, "--untested").stdout)["image"]
    assert [image for image in told if not image["tested"]] == left
    for image in told:  # how many are tested changes with every lock
        assert image["proof"].startswith(PROOFS[not image["tested"]])
    plain = invoke(root, "matrix", "--select", told[0]["id"]).stdout
    assert plain.rstrip().endswith(told[0]["proof"])


LONG = "x" * 9000
MANY = "word " * 900
FEW = r"(word )+w?o?r?d?\.\.\.[ word]* word"  # of them


@pytest.mark.parametrize("about", ["error", "cu130-torch2.14.1-trixie-runtime"])
@pytest.mark.parametrize(
    ("message", "hint", "told"),
    [
        ("it failed", "do this", "it failed; do this"),
        ("it failed", "", "it failed"),
        (
            f"no file {LONG} is there",
            "name another",
            f"no file {'x' * 30}...{'x' * 20} is there; name another",
        ),
        (f"no {MANY} and why", "name another", f"no {FEW} and why; name another"),
        ("it failed", f"known: {MANY}", f"it failed; known: {FEW}"),
        (
            f"no {MANY}",
            f"known: {MANY}",
            f"no {FEW}; known: {FEW}",
        ),
        (LONG, LONG, "x{30}...x{20}; x{30}...x{20}"),
    ],
)
def test_no_error_is_longer_than_300_characters(
    message: str, hint: str, told: str, about: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server, a file or a word of the user's would fill the screen, and hide what to do."""

    def fail(_: Options) -> None:
        raise NetworkError(message, hint)

    with pytest.raises(Exit) as caught:
        cli.verb(Options)(fail).body(None)
    cli.complain(about, NetworkError(message, hint))
    for line, name in ((caught.value.message, "error"), (capsys.readouterr().err[:-1], about)):
        assert re.fullmatch(f"{re.escape(name)}: {told}", str(line))
        assert len(str(line)) <= 300
        if "word" in told:  # the room is used
            assert len(str(line)) > 290


def test_a_long_path_keeps_its_file_name() -> None:
    line = one_line("error", f"/{'folder/' * 60}images.yaml is not a file", "")
    assert line.startswith("error: /folder/")
    assert line.endswith("folder/images.yaml is not a file")


@pytest.mark.parametrize("about", range(280, 320))
def test_an_error_about_a_long_name_does_not_grow(about: int) -> None:
    """A room of no letters was one for all."""
    line = one_line("x" * about, "a message " * 70, "hint " * 30)
    assert len(line) < about + 200
