"""What ./inv starts: Invoke with this project's tasks.py."""

from __future__ import annotations

from torch_images.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # the imports below take a while

    from torch_images.cli.program import main

    main()
