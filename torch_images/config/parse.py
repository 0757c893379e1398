"""images.yaml -> Config. Each check of the file is here or in a parse_* module."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

from torch_images.config.parse_fields import (
    BRANCH,
    NAME,
    capability,
    entry_name,
    packages,
    platform,
    release,
    requirements,
    url,
)
from torch_images.config.parse_gpus import architecture, check_gpus, load_other_gpus
from torch_images.config.parse_indexes import load_releases
from torch_images.config.parse_pods import load_pods
from torch_images.config.parse_removals import load_removals
from torch_images.config.parse_sources import load_features, load_sources
from torch_images.config.parse_variants import load_extras, load_variants
from torch_images.config.types import (
    AXES,
    COMPAT_MODES,
    Base,
    Compat,
    Config,
    Cuda,
    Defaults,
    Exclude,
    Row,
    target_range,
)
from torch_images.config.yaml_nodes import Record, Value, load
from torch_images.errors import suggest
from torch_images.platforms import AMD64, Platform

# The grammar of references, without a digest: https://github.com/distribution/reference
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAGGED_IMAGE = re.compile(
    rf"(?:[a-z0-9.-]+(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}"
)
_REGISTRY = re.compile(r"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{1,5})?")
_CUDA = re.compile(r"[1-9][0-9]\.[0-9]")
_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?")
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")
_NVCC_FLAGS = re.compile(r"-[A-Za-z0-9=_,.:/+-]*(?: -[A-Za-z0-9=_,.:/+-]*)*")
_PART_OF_TOOLKIT = re.compile(r"[a-z][a-z-]{0,30}")
_SYSTEM = re.compile(r"[a-z]+ [a-z]+")
# More combinations than these would take seconds to go through; each of them hours to build.
_MOST_COMBINATIONS = 20000


def load_config(path: Path) -> Config:
    """The content of images.yaml. Raises ConfigError with file, line and what to change."""
    root = load(path)
    top = root.record(
        (
            "registry",
            "owner",
            "homepage",
            "defaults",
            "catalogue",
            "architectures",
            "cuda",
            "keep",
            "archives",
        )
        + ("compat", "features", "sources", "packages", "bases", "variants", "pods"),
        ("arm64-gpus", "exclude", "extras", "other-gpus", "platforms", "removals"),
    )
    architectures = tuple(architecture(k, v) for k, v in top["architectures"].filled().entries())
    features = load_features(top["features"])
    cudas = tuple(_cuda(k, v) for k, v in top["cuda"].filled().entries())
    extras = load_extras(top["extras"], cudas) if "extras" in top else ()
    config = Config(
        registry=top["registry"].matching(_REGISTRY, "a registry"),
        owner=top["owner"].matching(NAME, "a lower-case name"),
        homepage=url(top["homepage"], secure=True),
        defaults=_defaults(top["defaults"]),
        architectures=architectures,
        other_gpus=load_other_gpus(top["other-gpus"]) if "other-gpus" in top else (),
        arm64_gpus=top.texts("arm64-gpus"),
        platforms=_platforms(top),
        cudas=cudas,
        keep=top["keep"].number("a number of minor versions", 1, 99),
        archives=url(top["archives"]),
        compat=_compat(top["compat"]),
        sources=load_sources(top["sources"].filled(), features, cudas),
        packages=requirements(top["packages"]),
        bases=tuple(_base(k, v) for k, v in top["bases"].filled().entries()),
        extras=extras,
        variants=load_variants(top["variants"].filled(), extras),
        pods=load_pods(top["pods"]),
        removals=load_removals(top["removals"], cudas) if "removals" in top else (),
        catalogue=tuple(_row(v) for v in top["catalogue"].items()),
        excludes=tuple(
            rule
            for v in (top["exclude"].items() if "exclude" in top else ())
            for rule in _excludes(v)
        ),
    )
    check_gpus(top)
    _check_size(config, root)
    _check_references(config, top)
    _check_toolkits(config, top)

    return config


def _platforms(top: Record) -> tuple[Platform, ...]:
    """The section `platforms`; linux/amd64 where the file has none."""
    if "platforms" not in top:
        return (AMD64,)
    return tuple(platform(value, value.text()) for value in top["platforms"].filled().scalars())


def _cuda(key: str, value: Value) -> Cuda:
    if not _CUDA.fullmatch(key):
        raise value.error(f"'{key}' is not a CUDA version like 12.8 or 13.0")
    fields = value.record(
        ("base", "driver", "floor", "targets"),
        ("torch", "indexes", "toolkit", "release", "archives", "nvcc-flags", "compat"),
    )
    if ("release" in fields) != ("archives" in fields):
        raise value.error(f"CUDA {key} must give both release and archives, or neither")
    driver = fields["driver"].matching(_DRIVER, "a Linux driver version like 580.65.06")
    floor = fields["floor"].matching(BRANCH, "a driver branch like 580")
    if int(floor) > int(driver.partition(".")[0]):
        raise fields["floor"].wrong(f"is newer than the driver {driver}")
    for word in ("toolkit", "archives", "compat"):
        if word in fields:
            fields[word].filled()
    if "release" in fields:
        fields["release"].matching(
            re.compile(re.escape(key) + r"\.[0-9]{1,2}"), f"a release of CUDA {key} like {key}.1"
        )
    if "nvcc-flags" in fields:
        fields["nvcc-flags"].matching(_NVCC_FLAGS, "a row of flags like -compress-mode=size")
    torch, indexes = load_releases(fields, value)
    return Cuda(
        version=key,
        base=fields.text("base"),
        driver=driver,
        floor=floor,
        targets=tuple(capability(v, v.text()) for v in fields["targets"].filled().scalars()),
        torch=torch,
        indexes=indexes,
        toolkit=tuple(
            v.matching(_PART_OF_TOOLKIT, "a part of cuda-toolkit like nvcc")
            for v in (fields["toolkit"].scalars() if "toolkit" in fields else ())
        ),
        release=fields.text("release"),
        nvcc_flags=fields.text("nvcc-flags"),
        compat=tuple(
            int(v.matching(BRANCH, "a driver branch like 535"))
            for v in (fields["compat"].scalars() if "compat" in fields else ())
        ),
        archives=tuple(
            v.matching(re.compile(r"[a-z][a-z0-9_]+"), "the name of an archive of CUDA's")
            for v in (fields["archives"].scalars() if "archives" in fields else ())
        ),
    )


def _compat(value: Value) -> Compat:
    fields = value.record(("mode", "repository", "key"))
    mode = fields.text("mode")
    if mode not in COMPAT_MODES:
        raise fields["mode"].error(f"unknown compat mode '{mode}'", suggest(mode, COMPAT_MODES))
    return Compat(
        mode=mode,
        repositories=_repositories(fields["repository"]),
        key=fields["key"].matching(_FINGERPRINT, "a full fingerprint of 40 hexadecimal digits"),
    )


def _repositories(value: Value) -> tuple[tuple[str, str], ...]:
    """The URLs by platform; one without a platform is for linux/amd64."""
    if not value.is_mapping:
        return ((AMD64.name, url(value)),)
    entries = value.filled().entries()
    return tuple((platform(each, name).name, url(each)) for name, each in entries)


def _base(key: str, value: Value) -> Base:
    fields = value.record(
        ("description", "python", "system", "packages"), ("suite", "images", "mirror", "snapshot")
    )
    if ("suite" in fields) == ("images" in fields):
        raise value.error(f"base '{key}' must have either a suite to bootstrap or images, not both")
    images = dict(fields["images"].filled().entries()) if "images" in fields else {}
    for image in images.values():
        if not _TAGGED_IMAGE.fullmatch(image.text()):
            raise image.error(
                f"'{image.text()}' is not an image with its tag",
                "write it like repository:tag; `invoke lock` pins its digest",
            )
    if "suite" in fields:
        fields["suite"].matching(NAME, "a Debian suite")
    elif "mirror" not in fields:
        raise value.error(f"base '{key}' lacks the mirror that has its packages")
    for key_ in ("mirror", "snapshot"):
        if key_ in fields:
            url(fields[key_])
    return Base(
        name=entry_name(key, value),
        description=fields.text("description"),
        python=fields["python"].matching(re.compile(r"3\.[0-9]{2}"), "a version like 3.11"),
        packages=packages(fields),
        system=fields["system"].matching(_SYSTEM, "distribution and codename like debian bookworm"),
        suite=fields.text("suite"),
        images=tuple((cuda, image.text()) for cuda, image in images.items()),
        mirror=fields.text("mirror"),
        snapshot=fields.text("snapshot"),
    )


def _excludes(value: Value) -> tuple[Exclude, ...]:
    """One rule for each combination of the values that an entry of `exclude` lists."""
    fields = value.record(("reason",), AXES)
    named = [axis for axis in AXES if axis in fields]
    if not named:
        raise value.error("an exclude must name at least one axis", f"axes: {', '.join(AXES)}")
    values = ([each.text() for each in _one_or_more(fields[axis])] for axis in named)
    return tuple(
        Exclude(reason=fields.text("reason"), **dict(zip(named, each, strict=True)))
        for each in itertools.product(*values)
    )


def _one_or_more(value: Value) -> tuple[Value, ...]:
    """A scalar alone, or the members of a list."""
    return value.filled().scalars() if value.is_list else (value,)


def _row(value: Value) -> Row:
    fields = value.record((), AXES)
    return Row(
        values=tuple(
            (axis, tuple(e.text() for e in _one_or_more(fields[axis])))
            for axis in AXES
            if axis in fields
        ),
        where="images.yaml",
    )


def _defaults(value: Value) -> Defaults:
    axes = ("cuda", "source", "variant")
    fields = value.record(axes)
    return Defaults(**{axis: fields.text(axis) for axis in axes})


def _check_size(config: Config, root: Value) -> None:
    """Raise ConfigError for a file with more than _MOST_COMBINATIONS combinations."""
    most = math.prod(len(config.names(axis)) for axis in AXES if axis not in ("cuda", "torch"))
    most *= sum(len(cuda.torch) for cuda in config.cudas)
    if most > _MOST_COMBINATIONS:
        problem = f"the file has {most} combinations of {', '.join(AXES)}"
        raise root.error(problem, f"remove some, so that {_MOST_COMBINATIONS} or fewer are left")


def _check_references(config: Config, top: Record) -> None:
    """Raise ConfigError unless each name that a section uses is defined where it should be."""
    given = top["defaults"].entries()
    pointers = [(axis, v) for axis, v in given if (axis, v.text()) != ("arch", "all")]
    pointers += [(axis, v) for axis, v in top["pods"].entries() if axis in AXES]
    for exclude in top["exclude"].items() if "exclude" in top else ():
        pointers += _named(exclude)
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


def _named(exclude: Value) -> Iterator[tuple[str, Value]]:
    """The values of axes that an exclude names, but for those of torch.

    `invoke lock --upgrade` drops releases, whose excludes may stay. Raises ConfigError for text
    that is no release.
    """
    for axis, value in exclude.entries():
        for each in _one_or_more(value) if axis in AXES else ():
            if axis == "torch":
                release(each)
            else:
                yield axis, each


def _check_pairs(config: Config, top: Record) -> None:
    """Raise ConfigError if a CUDA version cannot target an architecture, and no exclude says so."""
    lines = dict(top["architectures"].entries())
    for cuda in config.cudas:
        for arch in config.architectures:
            excluded = any(
                x.arch == arch.name
                and x.cuda in (None, cuda.version)
                and (x.source, x.base, x.variant, x.platform) == (None, None, None, None)
                for x in config.excludes
            )
            if arch.capability not in cuda.targets and not excluded:
                raise lines[arch.name].error(
                    f"CUDA {cuda.version} cannot target {arch.name} ({target_range(cuda)})",
                    f"add an exclude with cuda: '{cuda.version}', arch: '{arch.name}' and a reason",
                )


def _check_toolkits(config: Config, top: Record) -> None:
    """Raise ConfigError if an image needs a compiler that its CUDA version does not name.

    Images with a toolkit need one, and images of a source that is compiled.
    """
    lines = dict(top["variants"].entries()) | dict(top["sources"].entries())
    needing = [("variant", v.name) for v in config.variants if v.cuda_home]
    needing += [("source", s.name) for s in config.sources if s.compiled]
    compiled = {s.name: dict(s.beside) for s in config.sources if s.compiled}
    for axis, name in needing:
        for cuda in config.cudas:
            if cuda.version not in compiled.get(name, config.names("cuda")):
                continue
            excluded = any(
                getattr(x, axis) == name
                and x.cuda in (None, cuda.version)
                and all(getattr(x, other) is None for other in AXES if other not in (axis, "cuda"))
                for x in config.excludes
            )
            if not cuda.toolkit and not cuda.archives and not excluded:
                raise lines[name].error(
                    f"{axis} {name} has a compiler, CUDA {cuda.version} names none",
                    f"add an exclude with cuda: '{cuda.version}', {axis}: '{name}' and a "
                    "reason, or a toolkit to the CUDA version",
                )
