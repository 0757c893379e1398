"""Verbs that verify images."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from torch_images.build.build import revision
from torch_images.build.job import BuildOptions
from torch_images.cli import report, verb
from torch_images.cli.options import GPUS, Image, Json, flag, option, word
from torch_images.config.combine import default_platform
from torch_images.errors import UsageError, VerifyError
from torch_images.host.gpus import Request, device_requests
from torch_images.host.runner import Runner
from torch_images.jobs import measure
from torch_images.project import LEDGER
from torch_images.publish.registry import exact, has_host, retry
from torch_images.verify import ledger
from torch_images.verify.identify import find, identify
from torch_images.verify.reproduce import reproduce as again
from torch_images.verify.sbom import read
from torch_images.verify.verify import line_of, require
from torch_images.verify.verify import verify as check


class Verify(Image, Json):
    gpus: Sequence[Request] = option(
        f"also run the checks that need a GPU, on these: {GPUS}",
        default=(),
        type=device_requests,
    )
    record: bool = flag("if all checks pass, record it in docs/ledger.csv")
    no_cache: bool = flag(
        "check files, machine code and compilers again, even those that passed in another image"
    )


@verb.verb(Verify, example="verify torch-cu130:sm120")
def verify(options: Verify) -> verb.Result:
    """Check a built image against images.yaml and its lock."""
    if options.record:
        verb.require_clone("verify --record")
    config = verb.config()
    if options.record and config.own:
        raise UsageError("--record is for images of images.yaml", "leave it out")
    workspace, engine = verb.workspace(), verb.engine()
    reference, plan = identify(config, options.image, workspace, engine)
    job = verb.job(config, engine, BuildOptions(no_cache=options.no_cache))
    proof = check(job, reference, plan, gpus=options.gpus)
    if options.record and proof.passed:
        line = line_of(
            plan,
            proof,
            # Checks of the labels passed, so this commit builds the very image.
            commit=revision(workspace, Runner()) or "",
            date=dt.datetime.now(dt.UTC).date().isoformat(),
            machine=measure(),
        )
        told = (
            "not recorded: no check ran on a GPU, the build resolved a part of its lock, "
            "or its layers are packed small"
        )
        if line:
            ledger.add(workspace.root, line)
            told = f"recorded in {LEDGER}"
        verb.say(told)
    return verb.Result(
        data={**asdict(proof), "passed": proof.passed},
        text=report.verified(proof) if proof.passed else "",
        then=partial(require, proof, workspace),
    )


class Reproduce(Json):
    image: str = word("tag, image id, identifier or registry reference")
    commit: str = option(
        "commit to build (default: this checkout if it builds the image, else by docs/ledger.csv)"
    )


@verb.verb(Reproduce, example="reproduce torch-cu130:sm120")
def reproduce(options: Reproduce) -> verb.Result:
    """Rebuild an image from nothing and compare the two."""
    config, engine = verb.config(), verb.engine(bootstraps=True)
    image = find(config, options.image, engine)
    if has_host(image) and engine.digest(image) is None:
        # No build has the digest of an index: take its image for this machine.
        platform = default_platform(config).name
        image = retry(partial(exact, image, Runner(), platform=platform), say=verb.say)
    job = verb.job(config, engine)
    verdict = again(job, image, commit=options.commit)

    def require() -> None:
        if not verdict.reproducible:
            count = len(verdict.differences)
            raise VerifyError(f"{image} is not reproducible: {count} differences")

    return verb.Result(data=asdict(verdict), text=report.verdict(verdict), then=require)


@verb.verb(Image, example="sbom torch-cu130:sm120")
def sbom(options: Image) -> verb.Result:
    """Print the SBOM of an image: CycloneDX, JSON."""
    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, _ = identify(config, options.image, workspace, engine)
    return verb.Result(text=read(reference, engine, verb.say).rstrip("\n"))
