"""Checks of the project's own programs inside an image: they depend on its torch and Python alone.

`verify` runs them in an image only if no record of a passed run exists for that torch and Python:
see torch_images/verify/programs.py. Settings and fixtures are those of tests/container.
"""

from __future__ import annotations

from tests.container.conftest import (  # noqa: F401  pytest looks for fixtures here
    expected,
    pytest_collection_modifyitems,
)
