from __future__ import annotations

import pytest

from torch_images.errors import NetworkError, TorchImagesError, UsageError
from torch_images.host.refusals import registry_refusal


# The words of moby 26.1 for each case.
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("manifest for a:1 not found: manifest unknown: manifest unknown", UsageError),
        ("pull access denied for a, repository does not exist or may require login", UsageError),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: no such host', NetworkError),
        ('Get "https://r/v2/": dial tcp 127.0.0.1:5000: connect: connection refused', NetworkError),
        ("toomanyrequests: You have reached your pull rate limit", NetworkError),
    ],
)
def test_what_a_registry_answers(words: str, kind: type[TorchImagesError]) -> None:
    error = registry_refusal("r/a:1", words)
    assert type(error) is kind
    assert "r/a:1" in str(error)
    assert words.rsplit(":", maxsplit=1)[-1].strip() in str(error)
