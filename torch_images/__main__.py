"""The program behind ./inv."""

from __future__ import annotations

from torch_images.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # before the slow imports below

    from torch_images.cli.program import main

    main()
