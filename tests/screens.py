"""Draw what a command prints as an SVG, for the documentation.

    uv run --no-project --with rich==15.0.0 tests/screens.py docs/screens/pick.svg ./inv matrix

The picture has the command after "$", then its two outputs as they came. It names no font of the
network's, so it looks the same from a file. The exit code is the command's.
"""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 110


def main(picture: Path, command: list[str]) -> int:
    """Run a command and draw it; 0 if it succeeded."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    console.print(Text.from_ansi(done.stdout.decode()))
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    title = Path(command[0]).name
    console.save_svg(str(picture), title=title, theme=MONOKAI, code_format=form, unique_id="screen")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
