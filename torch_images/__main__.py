"""The program behind ./inv."""

from __future__ import annotations

import atexit
import gc
import os

from torch_images.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # before the slow imports below
    gc.set_threshold(100_000)  # looking for cycles takes a fifth of a verb's start
    atexit.register(gc.freeze)  # and a tenth at its end
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # no search of all packages

    from torch_images.cli.program import main

    main()
