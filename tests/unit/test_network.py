from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.errors import ConfigError
from torch_images.host.network import Network, detect


def test_detect_a_missing_ca_bundle() -> None:
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE=/none is not a file; correct or unset"):
        detect({"SSL_CERT_FILE": "/none"})


@pytest.mark.parametrize(
    ("network", "local"),
    [
        (Network(index="http://localhost:8000/simple"), True),
        (Network(proxies=(("HTTPS_PROXY", "http://127.0.0.1:3128"),)), True),
        (Network(proxies=(("NO_PROXY", "localhost"),)), False),
        (Network(index="https://index.example/simple"), False),
    ],
)
def test_on_loopback_of_index_and_proxies(network: Network, local: bool) -> None:
    assert network.on_loopback is local


def test_detect_ignores_empty_variables(tmp_path: Path) -> None:
    """Empty is how a shell or a CI file switches one off."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    empty = dict.fromkeys(
        ("SSL_CERT_FILE", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY")
        + ("TORCH_IMAGES_COMPAT_MIRROR", "TORCH_IMAGES_SOURCE_MIRROR", "CCACHE_REMOTE_STORAGE"),
        "",
    )
    assert detect(empty) == detect({})
    detected = detect(
        {**empty, "PIP_CERT": str(bundle), "PIP_INDEX_URL": "http://i", "https_proxy": "http://p"}
    )
    assert detected.ca_bundle == bundle
    assert detected.index == "http://i"
    assert detected.proxies == (("HTTPS_PROXY", "http://p"),)
    assert detected.compat_mirror is detected.source_mirror is None


URLS = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
    *("TORCH_IMAGES_COMPAT_MIRROR", "TORCH_IMAGES_SOURCE_MIRROR"),
)


@pytest.mark.parametrize("url", ["http://[::1", "host:port"])
@pytest.mark.parametrize("name", URLS)
def test_detect_an_invalid_url_without_showing_it(name: str, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        detect({name: url})
    upper = name.upper()
    assert caught.value.message == f"{upper} is not a URL"
    assert caught.value.hint.startswith("correct it; ")
    assert "%2F" in caught.value.hint
