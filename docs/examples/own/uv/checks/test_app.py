import importlib.util
from importlib.metadata import version


def test_package_is_installed() -> None:
    assert version("my-app") == "1.0"


def test_group_stays_out() -> None:
    # The checks bring a pytest of their own, beside the image.
    assert "site-packages" not in importlib.util.find_spec("pytest").origin
