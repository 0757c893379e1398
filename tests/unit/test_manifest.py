"""What the manifest of an image calls its layers, from the history that builds leave."""

from __future__ import annotations

from pathlib import Path

from torch_images.build.plan import LockedImage, lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.publish.datasheet import _layers


def held(config: Config, root: Path, history: list[str], image: LockedImage) -> list[str]:
    steps = [{"created_by": command} for command in history]
    steps.insert(1, {"created_by": "ENV A=1", "empty_layer": True})  # type: ignore[dict-item]
    document = {"layers": [{"digest": f"sha256:{n}", "size": n} for n in range(len(history))]}
    planned = plan_image(config, image, root)
    found = _layers(document, steps, list(range(len(steps))), planned)
    return [layer["holds"] for layer in found]


def test_layers_from_the_host_say_what_they_are(config: Config, root: Path) -> None:
    history = ["mmdebstrap bookworm", "CUDA libraries, the small ones", "torch 2.11.0"]
    history += ["RUN /run/build/create-venv /usr/bin/python3.11", "RUN /run/build/compile-wheels"]
    history += ["RUN /run/build/install-wheels /run/wheels.txt"]
    pod = lock_image(config, choose(config, variant="pod"), root / "locks")
    assert held(config, root, history, pod) == [
        *("base", "CUDA libraries, the small ones", "torch 2.11.0"),
        *("Python environment", "bytecode of the wheels", "wheels of the variant"),
    ]


def test_compiled_ones_are_named_in_their_order(config: Config, root: Path) -> None:
    compiled = ["base", *["RUN /run/build/install-compiled /run/wheels"] * 2]
    fork = lock_image(config, choose(config, source="fork"), root / "locks")
    assert held(config, root, compiled, fork) == ["base", "PyTorch", "Triton"]
