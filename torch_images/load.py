"""images.yaml -> Config, parsed once into frozen types; every check of the file is here."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from torch_images.arch import Capability
from torch_images.config import (
    AXES,
    COMPAT_MODES,
    Architecture,
    Base,
    Compat,
    Config,
    Cuda,
    Defaults,
    Exclude,
    Source,
    Variant,
    Wheel,
    target_range,
)
from torch_images.errors import suggest
from torch_images.yamlnode import Record, Value, load

_TAGGED_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9._-]*")
_DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_CUDA = re.compile(r"[1-9][0-9]\.[0-9]")
_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")
_URL = re.compile(r"https://[A-Za-z0-9.-]+(?:/[A-Za-z0-9._~/-]*)?")
_ARCHIVE = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~/-]*)?")


def load_config(path: Path) -> Config:
    """Read images.yaml. Raises ConfigError with file, line and what to change."""
    root = load(path)
    top = root.record(
        ("registry", "owner", "homepage", "defaults", "architectures", "cuda")
        + ("compat", "sources", "packages", "bases", "variants"),
        ("exclude",),
    )
    architectures = tuple(_architecture(k, v) for k, v in top["architectures"].entries())
    cudas = tuple(_cuda(k, v) for k, v in top["cuda"].entries())
    config = Config(
        registry=_matching(top["registry"], re.compile(r"[a-z0-9.-]+(?::[0-9]+)?"), "a registry"),
        owner=_matching(top["owner"], _NAME, "a lower-case name"),
        homepage=_matching(top["homepage"], _URL, "an https URL"),
        defaults=_defaults(top["defaults"]),
        architectures=architectures,
        cudas=cudas,
        compat=_compat(top["compat"]),
        sources=tuple(_source(k, v) for k, v in top["sources"].entries()),
        packages=tuple(_requirement(v) for v in top["packages"].items()),
        bases=tuple(_base(k, v) for k, v in top["bases"].entries()),
        variants=tuple(_variant(k, v) for k, v in top["variants"].entries()),
        excludes=tuple(_exclude(v) for v in top["exclude"].items()) if "exclude" in top else (),
    )
    _check_references(config, top)
    _check_pairs(config, top)
    _check_toolkits(config, top)
    return config


def _matching(value: Value, pattern: re.Pattern[str], what: str) -> str:
    text = value.text()
    if not pattern.fullmatch(text):
        raise value.error(f"'{value.path}' is '{text}', which is not {what}")
    return text


def _name(key: str, value: Value) -> str:
    if not _NAME.fullmatch(key):
        raise value.error(f"'{key}' is not a name", "use lower-case letters, digits, '.' and '-'")
    return key


def _capability(value: Value, text: str) -> Capability:
    try:
        return Capability.parse(text)
    except ValueError as error:
        raise value.error(str(error)) from None


def _architecture(key: str, value: Value) -> Architecture:
    fields = value.record(("family", "gpus"))
    return Architecture(
        capability=_capability(value, key), family=fields.text("family"), gpus=fields.texts("gpus")
    )


def _cuda(key: str, value: Value) -> Cuda:
    if not _CUDA.fullmatch(key):
        raise value.error(f"'{key}' is not a CUDA version like 12.8 or 13.0")
    fields = value.record(("driver", "floor", "targets", "wheel"), ("toolkit",))
    return Cuda(
        version=key,
        driver=_matching(fields["driver"], _DRIVER, "a Linux driver version like 580.65.06"),
        floor=_matching(fields["floor"], re.compile(r"[0-9]{3}"), "a driver branch like 580"),
        targets=tuple(_capability(v, v.text()) for v in fields["targets"].items()),
        wheel=_wheel(fields["wheel"].record(("torch", "features"))),
        toolkit=_requirements(fields, "toolkit"),
    )


def _wheel(fields: Record) -> Wheel:
    value = fields["torch"]
    try:
        version = Version(value.text())
    except InvalidVersion:
        raise value.error(
            f"'{value.path}' is '{value.text()}', which does not pin a version",
            "give one exact version like 2.11.0",
        ) from None
    if version.local:
        raise value.error(f"'{value.path}' names a local version", f"write {version.public}")
    return Wheel(torch=str(version), features=fields.texts("features"))


def _compat(value: Value) -> Compat:
    fields = value.record(("mode", "repository", "key"))
    mode = fields.text("mode")
    if mode not in COMPAT_MODES:
        raise fields["mode"].error(f"unknown compat mode '{mode}'", suggest(mode, COMPAT_MODES))
    return Compat(
        mode=mode,
        repository=_matching(fields["repository"], _ARCHIVE, "an http or https URL").rstrip("/"),
        key=_matching(fields["key"], _FINGERPRINT, "a full fingerprint of 40 hexadecimal digits"),
    )


def _source(key: str, value: Value) -> Source:
    fields = value.record(("description",), ("repository", "commit"))
    if ("repository" in fields) != ("commit" in fields):
        raise value.error(f"source '{key}' must give both repository and commit, or neither")
    if "commit" in fields:
        _matching(fields["repository"], _URL, "an https URL")
        _matching(fields["commit"], _COMMIT, "a full commit of 40 hexadecimal digits")
    return Source(
        name=_name(key, value),
        description=fields.text("description"),
        repository=fields.text("repository"),
        commit=fields.text("commit"),
    )


def _requirement(value: Value) -> str:
    try:
        requirement = Requirement(value.text())
    except InvalidRequirement as error:
        raise value.error(f"'{value.text()}' is not a requirement: {error}") from None
    if requirement.url or requirement.name.lower() == "torch":
        raise value.error(
            f"'{value.text()}' is not acceptable here",
            "name a package of the index; torch is set per CUDA version",
        )
    return value.text()


def _base(key: str, value: Value) -> Base:
    fields = value.record(
        ("description", "python", "system", "packages"), ("suite", "images", "mirror", "snapshot")
    )
    if ("suite" in fields) == ("images" in fields):
        raise value.error(f"base '{key}' must have either a suite to bootstrap or images, not both")
    images = dict(fields["images"].entries()) if "images" in fields else {}
    for image in images.values():
        if not _TAGGED_IMAGE.fullmatch(image.text()):
            raise image.error(
                f"'{image.text()}' is not an image with its tag",
                "write it like repository:tag; `invoke lock` pins its digest",
            )
    if "suite" in fields:
        _matching(fields["suite"], _NAME, "a Debian suite")
    elif "mirror" not in fields:
        raise value.error(f"base '{key}' lacks the mirror that has its packages")
    for name in ("mirror", "snapshot"):
        if name in fields:
            _matching(fields[name], _ARCHIVE, "an http or https URL")
    return Base(
        name=_name(key, value),
        description=fields.text("description"),
        python=_matching(fields["python"], re.compile(r"3\.[0-9]{2}"), "a version like 3.11"),
        packages=tuple(
            _matching(v, _DEBIAN_PACKAGE, "the name of a Debian package")
            for v in fields["packages"].items()
        ),
        system=fields.text("system"),
        suite=fields.text("suite"),
        images=tuple((cuda, image.text()) for cuda, image in images.items()),
        mirror=fields.text("mirror"),
        snapshot=fields.text("snapshot"),
    )


def _requirements(fields: Record, key: str) -> tuple[str, ...]:
    return tuple(_requirement(v) for v in fields[key].items()) if key in fields else ()


def _variant(key: str, value: Value) -> Variant:
    fields = value.record(("description",), ("cuda-home", "packages", "wheels"))
    packages = fields["packages"].items() if "packages" in fields else ()
    if "cuda-home" in fields:
        _matching(fields["cuda-home"], re.compile(r"(?:/[a-z0-9.-]+)+"), "an absolute path")
    return Variant(
        name=_name(key, value),
        description=fields.text("description"),
        packages=tuple(
            _matching(v, _DEBIAN_PACKAGE, "the name of a Debian package") for v in packages
        ),
        wheels=_requirements(fields, "wheels"),
        cuda_home=fields.text("cuda-home"),
    )


def _exclude(value: Value) -> Exclude:
    fields = value.record(("reason",), AXES)
    if not any(axis in fields for axis in AXES):
        raise value.error("an exclude must name at least one axis", f"axes: {', '.join(AXES)}")
    axes = {axis: fields.text(axis) for axis in AXES if axis in fields}
    return Exclude(reason=fields.text("reason"), **axes)


def _defaults(value: Value) -> Defaults:
    fields = value.record(AXES)
    return Defaults(**{axis: fields.text(axis) for axis in AXES})


def _check_references(config: Config, top: Record) -> None:
    """Every name that one section uses exists in the section it points to."""
    pointers = [(axis, v) for axis, v in top["defaults"].entries() if v.text() != "all"]
    for exclude in top["exclude"].items() if "exclude" in top else ():
        pointers += [(axis, v) for axis, v in exclude.entries() if axis in AXES]
    for _, base in top["bases"].entries():
        for key, images in base.entries():
            if key == "images":
                for version, image in images.entries():
                    if version not in config.names("cuda"):
                        hint = suggest(version, config.names("cuda"))
                        raise image.error(f"'{image.path}': unknown cuda '{version}'", hint)
    for axis, value in pointers:
        if value.text() not in config.names(axis):
            hint = suggest(value.text(), config.names(axis))
            raise value.error(f"'{value.path}': unknown {axis} '{value.text()}'", hint)


def _check_pairs(config: Config, top: Record) -> None:
    """Every CUDA version and architecture that is not excluded can be compiled together."""
    lines = dict(top["architectures"].entries())
    for cuda in config.cudas:
        for arch in config.architectures:
            excluded = any(
                x.arch == arch.name and x.cuda in (None, cuda.version) for x in config.excludes
            )
            if arch.capability not in cuda.targets and not excluded:
                raise lines[arch.name].error(
                    f"CUDA {cuda.version} cannot target {arch.name} ({target_range(cuda)})",
                    f"add an exclude with cuda: '{cuda.version}', arch: '{arch.name}' and a reason",
                )


def _check_toolkits(config: Config, top: Record) -> None:
    """Every variant with a compiler that is not excluded has one for the CUDA version."""
    lines = dict(top["variants"].entries())
    for variant in config.variants:
        for cuda in config.cudas:
            excluded = any(
                x.variant == variant.name
                and x.cuda in (None, cuda.version)
                and (x.arch, x.source, x.base) == (None, None, None)
                for x in config.excludes
            )
            if variant.cuda_home and not cuda.toolkit and not excluded:
                raise lines[variant.name].error(
                    f"variant {variant.name} has a compiler, CUDA {cuda.version} names none",
                    f"add an exclude with cuda: '{cuda.version}', variant: '{variant.name}' and a "
                    "reason, or a toolkit to the CUDA version",
                )
