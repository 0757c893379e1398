"""What options become, and what verbs print that need no engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import invoke
from torch_images.cli.build_tasks import Build, Wheels
from torch_images.cli.collection import VERBS
from torch_images.cli.options import Options, flag, option, several, word
from torch_images.cli.parser import parse
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError

IMAGE = f"cu130-sm120-torch{T130}-trixie-runtime"


STALE = "build --stale --dry-run"
PLURALS = ("images", "gpus", "architectures", "others", "tags", "names", "aliases")


class Every(Options):
    """An option of each kind."""

    image: str = word("an image")
    list: bool = flag("list images")
    count: int = option("a number", default=3, type=int)
    mirror: tuple[str, ...] = several("a mirror")
    dry_run: bool = flag("change nothing", needs="list")


def test_options_of_values() -> None:
    words = {"image": "x", "count": 4, "mirror": ["a", "b"], "dry_run": True, "list": True}
    assert asdict(Every.of(words)) == words
    bare = {"image": "x", "count": 3, "mirror": (), "dry_run": False, "list": False}
    assert asdict(Every.of({"image": "x"})) == bare
    for wrong, noun in (({"image": ""}, "--image"), ({"image": "x", "dry_run": True}, "--dry-run")):
        with pytest.raises(UsageError, match=noun):
            Every.of(wrong)


@pytest.mark.parametrize(
    "line", ["H100 570", "--gpu H100 570", "H100 --driver 570", "--driver=570 H100"]
)
def test_parse_positional_words(line: str) -> None:
    assert parse(VERBS, "pick", line.split()) == {"gpu": "H100", "driver": "570"}


def test_parse_types_of_options() -> None:
    def read(line: str) -> Any:
        name, *words = line.split()
        return VERBS[name].options.of(parse(VERBS, name, words))

    wheels = read("wheels --slice 90m --share 1/2 --jobs 4")
    assert (wheels.slice, wheels.share, wheels.jobs) == (5400, "1/2", 4)
    assert read("verify x").gpus == ()
    assert read("verify x --gpus all").gpus[0]["count"] == -1
    month, week = read("gc"), read("gc --older 1w --keep 50GB")
    assert (month.older, month.keep) == (30 * 86400, 0)
    assert (week.older, week.keep) == (7 * 86400, 50 * 10**9)


def test_axes_are_those_of_the_verb() -> None:
    assert Build.of({"cuda": "13.0", "compat": True}).axes == {
        **dict.fromkeys(("torch", "arch", "source", "base", "variant", "platform"), ""),
        "cuda": "13.0",
        "compat": "with",
    }
    assert sorted(Wheels.of({}).axes) == ["arch", "base", "cuda", "source"]


def test_another_images_yaml(root: Path, tmp_path: Path) -> None:
    """By --config and by its variable; its locks lie beside it."""
    text = (root / "images.yaml").read_text()
    other = tmp_path / "mine.yaml"
    other.write_text(text.replace("owner: torch-images", "owner: somebody"))
    pick = ("pick", "--gpu", "RTX 5090", "--driver", "580", "--json")
    done = invoke(root, "--config", str(other), *pick)
    assert (done.returncode, "locks" in done.stderr) == (3, True)
    (tmp_path / "locks").symlink_to(root / "locks")
    for words, variables in (
        (("--config", str(other)), {}),
        ((), {"TORCH_IMAGES_CONFIG": str(other)}),
    ):
        done = invoke(root, *words, *pick, **variables)
        assert done.returncode == 0, done.stderr
        assert "ghcr.io/somebody/torch-cu130" in done.stdout


def test_matrix(root: Path, config: Config) -> None:
    """The catalogue with its proofs; --select, --platform and --untested leave images out."""

    def listed(*words: str) -> list[dict[str, object]]:
        images: list[dict[str, object]]
        images = json.loads(invoke(root, "matrix", "--json", *words).stdout)["images"]
        return images

    whole = listed()
    assert [image["id"] for image in whole] == [spec.id for spec in matrix(config)]
    one = listed("--select", IMAGE, "--platform", "linux/amd64")
    assert one == [image for image in whole if image["id"] == IMAGE] != []
    assert listed("--untested") == [image for image in whole if not image["tested"]]
    plain = invoke(root, "matrix", "--select", IMAGE).stdout
    assert plain.startswith(f"{IMAGE}  torch {T130}  ")
    assert plain.rstrip().endswith(str(one[0]["proof"]))


def test_what_json_prints_is_one_shape(root: Path, tmp_path: Path) -> None:
    """An object with the number of its schema, whose lists have plural names."""
    for words in ("matrix", "pick H100 580", "build --dry-run", STALE):
        env = {"DOCKER_HOST": "unix:///none", "TORCH_IMAGES_CACHE": str(tmp_path)}
        done = invoke(root, *words.split(), "--json", **env)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["schema"] == 1
        held = [found, *found.get("images", []), *found.get("gpus", [])]
        lists = {name for each in held for name, value in each.items() if isinstance(value, list)}
        assert lists <= {*PLURALS, "why", "compiles", "command"}


def test_render_prints_or_writes(root: Path, tmp_path: Path) -> None:
    printed = invoke(root, "render", IMAGE).stdout
    assert invoke(root, "render", "torch-cu130:sm120").stdout == printed
    invoke(root, "render", IMAGE, "--output", str(tmp_path / "context"))
    assert printed == (tmp_path / "context" / "Dockerfile").read_text() + "\n"


def test_build_dry_run(root: Path, tmp_path: Path) -> None:
    """As text and as JSON; it needs no engine and writes nothing."""
    words = ("build", "--dry-run", "--cuda", "13.0", "--source", "fork", "--arch", "12.0")
    env = {"DOCKER_HOST": "unix:///none", "TORCH_IMAGES_CACHE": str(tmp_path)}
    done = invoke(root, *words, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("would build cu130-sm120-fork-trixie-runtime\n")
    plan = json.loads(invoke(root, *words, "--json", **env).stdout)
    [image] = plan["images"]
    assert image["compiles"][0].startswith("compiles triton ")
    assert plan["command"][:3] == ["docker", "buildx", "bake"]
    small = json.loads(invoke(root, *words, "--json", "--compression", "small", **env).stdout)
    assert small["images"][0]["tags"][0] == image["tags"][0] + "-small"
    assert list(tmp_path.iterdir()) == []
