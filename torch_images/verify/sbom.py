"""The SBOM of an image: its build writes it into the image; this module reads and checks it.

CycloneDX 1.6, JSON: https://cyclonedx.org/docs/1.6/json/
A derived image contains the SBOM of its base. So the SBOM is compared with the installed packages
and, if they differ, a new one is made from those packages.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch_images.build.render import FOLDER
from torch_images.errors import VerifyError, shown
from torch_images.host import outputs
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify import inventory

PATH = f"{FOLDER}/cyclonedx.json"  # scanners of a derived image do not look for this name


def read(image: str, engine: Engine, say: Callable[[str], None]) -> str:
    """The SBOM of an image; `say` gets a line if it is not the one in the image.

    Raises EngineError if the image has none, VerifyError if it is not valid CycloneDX 1.6.
    """
    text = _text(image, engine)
    bill, installed = _check(image, text), _installed(image, engine)
    try:
        kept = [c for c in bill["components"] if c["purl"] in installed or _beside(c["purl"])]
        if len(kept) == len(bill["components"]) and installed <= {c["purl"] for c in kept}:
            return text
        base = bill["metadata"]["component"]
        name = f"{base['name']}:{base['version']}"
        made = derived(bill, kept, installed, image, engine.inspect(image).id)
    except KeyError as error:
        raise VerifyError(f"{image}: {PATH} is not this project's: it lacks {error}") from None
    say(f"{image} is derived from {shown(name)}: this SBOM lists the installed packages")
    text = json.dumps(made, indent=1) + "\n"
    _check(image, text)
    return text


def derived(
    bill: Mapping[str, Any], kept: list[dict[str, Any]], urls: set[str], image: str, digest: str
) -> dict[str, Any]:
    """The SBOM of an image whose base has the SBOM `bill`.

    `kept` are the components shared with the base, with their hashes and licences; `urls` are the
    package URLs of all installed packages; `digest` is the image's.
    """
    from packageurl import PackageURL

    added = (PackageURL.from_string(purl) for purl in sorted(urls - {c["purl"] for c in kept}))
    parts = kept + [
        {
            "type": "library",
            "bom-ref": url.to_string(),
            "purl": url.to_string(),
            "name": url.name,
            "version": url.version,
        }
        for url in added
    ]
    own = {"type": "container", "bom-ref": digest, "name": image, "version": digest}
    ancestors = {"ancestors": [bill["metadata"]["component"]]}
    refs = [part["bom-ref"] for part in parts]
    return {
        **{key: bill[key] for key in ("$schema", "bomFormat", "specVersion", "version")},
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, digest).urn,
        "metadata": {"component": {**own, "pedigree": ancestors}},
        "components": parts,
        "dependencies": [{"ref": digest, "dependsOn": refs}, *({"ref": ref} for ref in refs)],
    }


def save(image: str, identifier: str, workspace: Workspace, engine: Engine) -> Path:
    """Write the SBOM of a verified image to the output folder. Returns its path.

    The checks that the image has passed include its form, but for that of IRIs. Keeps a file that
    is already this image's, so that a repeated build starts no container for it. Raises EngineError
    if the image has none.
    """
    path = workspace.output / "sbom" / f"{identifier}.cdx.json"
    mark = path.with_suffix(".of")  # digest of the image
    if path.exists() and mark.exists() and mark.read_text() == image:
        return path
    text = _text(image, engine)
    mark.unlink(missing_ok=True)
    outputs.write(path, text)
    outputs.write(mark, image)
    return path


def _text(image: str, engine: Engine) -> str:
    return engine.read_files(image, PATH)[PATH.rpartition("/")[2]]


def _check(image: str, text: str) -> Any:
    """The parsed SBOM. Raises VerifyError unless it is valid CycloneDX 1.6."""
    # Importing the schema's validator takes longer than all else in a repeated build.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    try:
        bill = json.loads(text)
        problem: object = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except (ValueError, RecursionError) as error:
        problem = error
    if problem:
        raise VerifyError(f"{image}: {PATH} is not valid CycloneDX: {str(problem)[:300]}")
    return bill


def _beside(purl: str) -> bool:
    """Whether a package is only unpacked in an image, so no package manager lists it."""
    return not purl.startswith(("pkg:pypi/", "pkg:deb/debian/", "pkg:deb/ubuntu/"))


def _installed(image: str, engine: Engine) -> set[str]:
    """The package URLs of the packages installed in an image, written as by its build."""
    from packageurl import PackageURL

    program = Path(inventory.__file__).read_text(encoding="utf-8")
    options = {"entrypoint": ["/usr/bin/python3"], "network_mode": "none", "user": "0"}
    done = engine.run(image, "-IBS", "-c", program, **options)
    last = done.output.strip().rpartition("\n")[2]
    try:
        listed = json.loads(last)
        distro = listed["distro"]
        urls = [
            PackageURL("pypi", None, re.sub(r"[-_.]+", "-", name).lower(), version)
            for name, version in listed["wheels"]
        ]
        for name, version, arch, source in listed["debs"]:
            upstream = {} if source == name else {"upstream": source}
            facts = {"arch": arch, "distro": distro, **upstream}
            urls.append(PackageURL("deb", distro.partition("-")[0], name, version, facts))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = f"{image}: its installed packages cannot be listed: {shown(last)}"
        raise VerifyError(problem) from None
    return {url.to_string() for url in urls}
