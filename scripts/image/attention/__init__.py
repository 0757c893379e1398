"""FlashAttention-4 behind torch's scaled_dot_product_attention, without a change in the program.

`activate` is called at the end of `import torch` (after_torch.py). Nothing is imported then
but this package; FlashAttention-4 itself is imported at the first call that takes it.

TORCH_IMAGE_ATTENTION chooses: "stock" leaves torch as it is; "fa4" takes FlashAttention-4 for all
that it can do; without it, calls take FlashAttention-4 where it was measured to be faster
(rules.py). All other calls take the kernel that torch would have taken.
"""

import os
import sys
from collections.abc import Mapping

from _torch_images import switches

VARIABLE = "TORCH_IMAGE_ATTENTION"
AUTO, FA4, STOCK = "auto", "fa4", "stock"


def read_mode(environ: Mapping[str, str]) -> tuple[str, str]:
    """The mode, and a complaint if the variable's value is none, else "".

    TORCH_IMAGE_PROFILE=off turns all settings off that the image makes, but not what is asked for.
    """
    default = AUTO if switches.is_on(environ, switches.PROFILE) else STOCK
    value = environ.get(VARIABLE, "")
    if value.lower() in (FA4, STOCK):
        return value.lower(), ""
    return default, f"{VARIABLE}={value} is not fa4 or stock, and is ignored" if value else ""


def say(line: str) -> None:
    """Print one line on standard error, unless TORCH_IMAGE_QUIET is on."""
    if not switches.is_on(os.environ, switches.QUIET):
        print(f"torch-images: {line}", file=sys.stderr, flush=True)


def activate() -> None:
    """Put FlashAttention-4 behind torch's attention. No failure here may stop `import torch`."""
    mode, complaint = read_mode(os.environ)
    if complaint:
        say(complaint)
    if mode == STOCK:
        return
    try:
        from torch_image_attention import routes

        routes.register(mode)
    except Exception as error:  # noqa: BLE001  torch works without it
        say(f"attention is torch's own, because FlashAttention-4 cannot be put behind it: {error}")
