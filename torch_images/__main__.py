"""The program behind ./inv."""

from __future__ import annotations

import gc

from torch_images.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # before the slow imports below
    gc.set_threshold(100_000)  # looking for cycles takes a fifth of a verb's start

    from torch_images.cli.program import main

    main()
