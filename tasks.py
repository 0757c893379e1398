"""The verbs, for Invoke. Each one parses, calls and prints; see torch_images/cli/."""

from torch_images.cli.program import adopt

adopt()  # before the imports that take a while

from torch_images.cli.collection import namespace  # noqa: E402

__all__ = ["namespace"]
