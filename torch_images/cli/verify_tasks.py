"""The verbs that prove what an image is."""

from __future__ import annotations

from functools import partial

from invoke.context import Context

from torch_images.cli import verb


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or identifier",
        "gpus": "also run what needs a GPU, on these: all, a number, device=0,1, or names of CDI "
        "devices such as nvidia.com/gpu=0",
        "no-cache": "list machine code anew that an earlier verification has listed",
        "json": "print the whole report as JSON",
    },
    example="verify torch-cu130:sm120",
)
def verify(
    c: Context, image: str, gpus: str = "", no_cache: bool = False, json: bool = False
) -> None:
    """Check a built image against images.yaml and its lock."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.host.gpus import device_requests
    from torch_images.verify.identify import identify
    from torch_images.verify.verify import require

    requests = device_requests(gpus)  # a wrong word is said before anything is looked at
    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, plan = identify(config, image, workspace, engine)
    proof = verb.verified(
        reference, config, plan, workspace, engine, reuse=False, fresh=no_cache, gpus=requests
    )
    if json:
        print(verb.as_json({**asdict(proof), "passed": proof.passed}))
    require(proof)
    if not json:
        print(report.verified(proof))


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or registry reference",
        "repository": "git repository that has the image's revision, if this one does not",
        "json": "print the verdict as JSON",
    },
    example="reproduce torch-cu130:sm120",
)
def reproduce(c: Context, image: str, repository: str = "", json: bool = False) -> None:
    """Build an image again from nothing, elsewhere, and compare the two."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.config.choose import default_platform
    from torch_images.errors import VerifyError
    from torch_images.host.runner import Runner
    from torch_images.publish.registry import exact, has_host, retry
    from torch_images.verify.reproduce import reproduce as again

    config, engine = verb.config(), verb.engine(bootstraps=True)
    if has_host(image) and engine.digest(image) is None:
        # An index has no digest that a build could have: the image for this machine has.
        platform = default_platform(config).name
        image = retry(partial(exact, image, Runner(), platform=platform), retries=5, say=verb.say)
    verdict = again(
        config,
        image,
        verb.workspace(),
        engine=engine,
        run=Runner(),
        repository=repository,
    )
    print(verb.as_json(asdict(verdict)) if json else report.verdict(verdict))
    if not verdict.reproducible:
        count = len(verdict.differences)
        raise VerifyError(f"{image} is not reproducible: {count} differences")


@verb.verb(
    positional=["image"],
    help={"image": "tag, image id or identifier"},
    example="sbom torch-cu130:sm120",
)
def sbom(c: Context, image: str) -> None:
    """Print the bill of materials of an image: CycloneDX, JSON."""
    from torch_images.verify.identify import identify
    from torch_images.verify.sbom import read

    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, _ = identify(config, image, workspace, engine)
    print(read(reference, engine), end="")
