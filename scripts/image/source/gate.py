"""Check a compiled wheel of torch for the features, code, commit and CUDA version of its recipe.

If a library is missing, CMake only switches a feature off, with one line in its log. So these
checks read the wheel's files.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_images.arch import Capability, targets_in_listing, unasked, widespread
from torch_images.inside.features import FEATURES, shows

_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
_OFF = re.compile(r"\boff\b|not found|could not|disabl|cannot|without|unable", re.IGNORECASE)


def problems(recipe: Mapping[str, Any], files: Path, log: str, tools: Path) -> Iterator[str]:
    """A message for each difference between an unpacked wheel of torch and its compile recipe.

    `recipe` is what torch_images/build/compile_recipe.py writes, `files` the folder of the unpacked
    wheel, `log` the output of its build, `tools` the folder with NVIDIA's cuobjdump.
    """
    for feature in recipe["features"]:
        if not shows(files / "torch" / "lib", feature):
            line = switched_off(feature, FEATURES[feature]["option"], log)
            yield f"feature {feature} is not in the wheel" + (
                f'; CMake said: "{line}"' if line else ""
            )
    yield from _versions(recipe, files / "torch" / "version.py")
    yield from copies(files)
    for name in _LIBRARIES:
        library = files / "torch" / "lib" / name
        # Linear algebra has its kernels from MAGMA, and without it may have no machine code at all.
        bare = name != _LIBRARIES[0] and "magma" not in recipe["features"]
        if library.exists():
            yield from _code(recipe["arches"].split(";"), library, tools, bare=bare)


def extension_problems(
    recipe: Mapping[str, Any], files: Path, _log: str, tools: Path
) -> Iterator[str]:
    """A message for each library of an extension with other code than its recipe asks for."""
    for library in sorted(files.rglob("*.so")):
        yield from _code(recipe["arches"].split(";"), library, tools, bare=True)


def copies(files: Path) -> Iterator[str]:
    """A message for each library that is in a wheel more than once.

    A build that gives libraries a version in their names makes links, and a wheel holds no links.
    """
    by_content: dict[tuple[str, str], list[str]] = {}
    for path in sorted(files.rglob("*.so*")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stem = path.name.partition(".so")[0]
        by_content.setdefault((stem, digest), []).append(path.relative_to(files).as_posix())
    for names in by_content.values():
        if len(names) > 1:
            yield f"{names[0]} is in the wheel {len(names)} times, as {', '.join(names[1:])} too"


def switched_off(feature: str, option: str, log: str) -> str:
    """The line of a build's log that says a feature was switched off; "" if there is none."""
    words = {feature.replace("-", ""), option.removeprefix("USE_").replace("_", "").lower()}
    for line in log.splitlines():
        plain = re.sub(r"[-_ ]", "", line).lower()
        if _OFF.search(line) and any(word and word in plain for word in words):
            return line.strip().removeprefix("-- ")
    return ""


def _versions(recipe: Mapping[str, Any], path: Path) -> Iterator[str]:
    text = path.read_text() if path.exists() else ""
    stated = dict(re.findall(r"^(\w+)(?:: [^=]+)? = ['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    expected = {
        "__version__": recipe["version"],
        "git_version": recipe["commit"],
        "cuda": recipe["cuda"],
    }
    for name, value in expected.items():
        if stated.get(name) != value:
            yield f"torch.version.{name.strip('_')} is {stated.get(name)}, expected {value}"


def _code(arches: list[str], library: Path, tools: Path, *, bare: bool) -> Iterator[str]:
    """A message for each target that a library lacks, or has although nobody asked for it.

    A library that is allowed to be `bare` may have no code for any target.
    """
    targets = {Capability.parse(arch) for arch in arches}
    for kind, expected in (("elf", targets), ("ptx", set[Capability]())):
        done = subprocess.run(
            [tools / "cuobjdump", f"--list-{kind}", library],
            capture_output=True,
            text=True,
            check=False,
        )
        listed = targets_in_listing(done.stdout)
        if bare and not listed:
            continue
        everywhere = {Capability.of_target(name) for name in widespread(listed)}
        what = "machine code" if kind == "elf" else "PTX"
        for missing in sorted(expected - everywhere):
            yield f"{library.name} has no {what} for {missing}"
        for extra in unasked(expected, listed):
            yield f"{library.name} has {what} for {extra}, which was not asked for"
