"""The host's network settings: CA bundle, proxies, package index.

Builds use these without a trace in the image: the index as a BuildKit secret, the bundle as a bind
mount, the proxies as predefined build arguments. No layer and no history records any of them. pip's
own settings (`pip.conf`, PIP_FIND_LINKS, extra indexes) are ignored: they can shadow a published
wheel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from torch_images.errors import ConfigError
from torch_images.redact import redact

if TYPE_CHECKING:
    import requests

_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_SYSTEM_BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Ubuntu, Alpine
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Fedora, RHEL
)
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_MIRROR_VARIABLES = ("TORCH_IMAGES_COMPAT_MIRROR", "TORCH_IMAGES_SOURCE_MIRROR")
# Where compilers share objects: https://ccache.dev/manual/latest.html#_remote_storage_backends
_CACHE_VARIABLE = "CCACHE_REMOTE_STORAGE"

# The beginning of a URL that may name a user; apt has its own kinds, e.g. "mirror+https".
URL = r"(?:[a-z0-9]+\+)?(?:https?|ftp)://"


@dataclass(frozen=True, kw_only=True)
class Network:
    """How to reach package indexes; `index` is None for the client's own default.

    `compat_mirror` has NVIDIA's compat packages, in place of the repository in images.yaml.
    `source_mirror` has git repositories and archives, each below the name of its host.
    `compile_cache` is ccache's environment for a shared cache; () without one.
    """

    ca_bundle: Path | None = None
    proxies: tuple[tuple[str, str], ...] = ()
    index: str | None = None
    compat_mirror: str | None = None
    source_mirror: str | None = None
    compile_cache: tuple[tuple[str, str], ...] = ()

    @property
    def on_loopback(self) -> bool:
        """Whether a proxy or the index is on loopback, which a bridged build cannot reach."""
        urls = [url for name, url in self.proxies if name != "NO_PROXY"]
        hosts = {urlsplit(url).hostname for url in (*urls, self.index or "")}
        return bool(hosts & {"localhost", "127.0.0.1", "::1"})

    @property
    def verify(self) -> str | bool:
        """The `verify` of `requests`: a CA bundle, or True for its default."""
        return str(self.ca_bundle) if self.ca_bundle else True

    def mirrored(self, url: str) -> str:
        """The URL to download from instead of `url`: in the source mirror, if there is one."""
        if not self.source_mirror:
            return url
        return f"{self.source_mirror.rstrip('/')}/{url.partition('://')[2]}"

    def for_uv(self) -> dict[str, str | None]:
        """Environment changes that make uv on the host use these settings and no others."""
        return {
            **dict.fromkeys(_INDEX_VARIABLES + ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")),
            "UV_NO_CONFIG": "1",
            "SSL_CERT_FILE": str(self.ca_bundle) if self.ca_bundle else None,
            **({"UV_DEFAULT_INDEX": self.index} if self.index else {}),
        }


def detect(environ: Mapping[str, str]) -> Network:
    """Read the environment.

    Raises ConfigError for a CA bundle that does not exist, and for an invalid URL.
    """
    bundle = next((p for p in _SYSTEM_BUNDLES if p.is_file()), None)
    for name in _BUNDLE_VARIABLES:
        if environ.get(name):
            bundle = Path(environ[name])
            if not bundle.is_file():
                raise ConfigError(f"{name}={bundle} is not a file", f"correct or unset {name}")
            break
    proxies = {n: environ.get(n) or environ.get(n.lower(), "") for n in _PROXY_VARIABLES}
    for name in (*_PROXY_VARIABLES, *_INDEX_VARIABLES, *_MIRROR_VARIABLES):
        if name != "NO_PROXY":
            check_url(name, proxies.get(name) or environ.get(name, ""))
    shared = environ.get(_CACHE_VARIABLE)
    return Network(
        ca_bundle=bundle,
        proxies=tuple((name, url) for name, url in proxies.items() if url),
        index=next((environ[n] for n in _INDEX_VARIABLES if environ.get(n)), None),
        compat_mirror=environ.get("TORCH_IMAGES_COMPAT_MIRROR", "").rstrip("/") or None,
        source_mirror=environ.get("TORCH_IMAGES_SOURCE_MIRROR", "").rstrip("/") or None,
        compile_cache=((_CACHE_VARIABLE, shared),) if shared else (),
    )


def check_url(name: str, url: str) -> None:
    """Raise ConfigError, without the URL's password, for an invalid URL."""
    try:
        urlsplit(url if "://" in url else f"//{url}").port  # noqa: B018  reading it is the check
    except ValueError:
        raise ConfigError(
            f"{name} is not a URL",
            "correct it; in a user's name or password write / as %2F, @ as %40, # as %23",
        ) from None


def split_user(url: str) -> tuple[str, str, str]:
    """A URL without its user, then the user's name and the password, each "" if missing.

    Programs must get these two in the environment or a file: all users can read command lines.
    A name without a password may be a token. Raises ConfigError for an invalid URL.
    """
    if not re.match(URL, url, re.IGNORECASE):
        return url, "", ""
    check_url("a mirror", url)
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return bare, unquote(parts.username or ""), unquote(parts.password or "")


def cause(error: requests.RequestException) -> str:
    """Why a request failed, on one line: the innermost reason, without names of the library."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    reason = redact(" ".join(str(inner or error).split()))  # before it is cut
    # urllib3 begins its reasons with the connection: an object, or its class and arguments.
    return re.sub(r"<[^<>]+>: |\b[A-Za-z]+\(host='[^']*', port=[^)]*\): ", "", reason)[:200]
