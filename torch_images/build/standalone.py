"""An image as a folder that `docker buildx build` builds without this project.

The folder has the base, the Debian packages and the build's programs. The build downloads wheels by
hash and unpacks them with the same code as our layers, so the installed files are the same. The
remaining steps are those of the ordinary Dockerfile.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import zstandard

from torch_images.build import labels
from torch_images.build.bake import Parts
from torch_images.build.context_file import ContextFile
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan, LockedImage, plan_image, version
from torch_images.build.prepare import Preparer
from torch_images.build.render import (
    Context,
    completed,
    dockerfile_facts,
    text_files,
    write_context,
)
from torch_images.build.supplies import Supply, supplies
from torch_images.build.templates import templates
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.fetch.bootstrap import PATH
from torch_images.fetch.tools import install_tools
from torch_images.host import outputs
from torch_images.inside.times import EPOCH
from torch_images.layers.plan import LayerPlan, all_plans
from torch_images.locks.wheels import requirements_text
from torch_images.oci.layout import layout_layers
from torch_images.platforms import AMD64
from torch_images.project import PACKAGE

TOOLS = "wheel-tools"
# The modules that unpack wheels; with the standard library and TOOLS they are complete.
_MODULES = (
    *("__init__", "arch", "arch_list", "errors", "fatbin", "redact"),
    *("layers/__init__", "layers/install", "layers/wheelzip"),
)


def check_standalone(image: LockedImage) -> None:
    """Raise UsageError for an image that cannot become a standalone folder."""
    spec = image.spec
    if spec.platform != AMD64 or image.lock.sources:
        raise UsageError(
            f"a standalone folder is only for {AMD64} and compiles nothing, unlike {spec.id}",
            "build it with `invoke build`",
        )


def write_standalone(job: Job, image: LockedImage, folder: Path) -> ImagePlan:
    """Write the standalone folder of an image. Returns the image as it is in the folder.

    It uses no engine. Raises UsageError for a folder that is not ours, and as `Preparer` does.
    """
    preparer = Preparer(job)
    with outputs.filling(folder) as new:
        preparer.first([image])
        parts = preparer.parts(image)
        plan = plan_image(job.config, image, job.workspace.root)
        folders = {name: Path(path) for name, path in parts.contexts.items()} | {
            name: install_tools(lock, job.workspace, job.run)
            for name, lock in (
                ("tools", plan.lock.build.name),
                ("sbom", plan.lock.sbom.name),
                (TOOLS, "tools-standalone"),
            )
        }
        for name, path in folders.items():
            shutil.copytree(path, new / "supplies" / name)
        _write_base(parts.base.layout, new / "base.tar.gz")
        context = render_standalone(job.config, plan, parts, job.workspace.root, folders)
        write_context(context, new)
    return plan


def render_standalone(
    config: Config, image: ImagePlan, parts: Parts, root: Path, folders: Collection[str]
) -> Context:
    """The text files of a standalone folder; `folders` are the names of its supplies. Pure.

    `root` is the project's folder, with docker/ and scripts/.
    """
    plans = all_plans(config, image.spec, image.lock)
    layers = {f"{number:02}": plan for number, plan in enumerate(plans, 1)}  # by their folders
    listed = supplies(image.lock)
    tools = Supply(
        kind="context",
        name=TOOLS,
        text="pip, which fetches wheels, and what unpacks them, locks/tools-standalone.json",
    )
    facts = dockerfile_facts(config, image.spec, image.lock) | {
        "supplies": tuple(s for s in (*listed, tools) if s.name in folders),
        "secrets": tuple(s for s in listed if s.kind == "secret"),
        "standalone": True,
        "source": None,
        "path": PATH,
        "installs": tuple(
            {"name": name, "title": f"{plan.title}, {plan.size / 1e6:.0f} MB to download"}
            for name, plan in layers.items()
        ),
        "labels": tuple(_labels(config, image, parts).items()),
    }
    text = templates(root / "docker").get_template("Standalone.j2").render(facts)
    context = completed(image.context, version(config, image))
    files = text_files({"Dockerfile": text})
    files += [file for file in context.files if file.path != "Dockerfile"]
    for name, plan in layers.items():
        recipe = json.dumps(_recipe(plan), indent=1) + "\n"
        pins = requirements_text(plan.wheels)
        files += text_files(
            {f"layers/{name}/requirements.txt": pins, f"layers/{name}/layer.json": recipe}
        )
    program = root / "scripts" / "image" / "standalone" / "install-layer"
    files.append(
        ContextFile(path=f"standalone/{program.name}", data=program.read_bytes(), executable=True)
    )
    for module in _MODULES:
        data = (PACKAGE / f"{module}.py").read_bytes()
        files.append(ContextFile(path=f"standalone/torch_images/{module}.py", data=data))
    return Context(id=image.spec.id, files=tuple(files))


def _labels(config: Config, image: ImagePlan, parts: Parts) -> Mapping[str, str]:
    """The labels of the image, except those that mark images our own verbs may remove."""
    every = labels.write(config, image)
    every |= labels.write_built(parts.base.digest, parts.compat_note)
    return {name: value for name, value in every.items() if name not in (labels.ID, labels.LOCK)}


def _recipe(plan: LayerPlan) -> dict[str, object]:
    return {
        "title": plan.title,
        "python": plan.python,
        "mtime": EPOCH,
        "wheels": [wheel.filename for wheel in plan.wheels],
        "removals": [[r.files, r.code, r.symbols, r.lists] for r in plan.removals],
        "arches": plan.arches,
    }


def _write_base(layout: Path, target: Path) -> None:
    """Write the one layer of a base as .tar.gz: not every builder's ADD supports zstd."""
    [blob] = layout_layers(layout)
    with (
        blob.open("rb") as packed,
        zstandard.ZstdDecompressor().stream_reader(packed) as plain,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=EPOCH) as stream,
    ):
        shutil.copyfileobj(plain, stream, 1 << 20)
