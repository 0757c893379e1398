"""What shows a feature of torch in its libraries: features.json names the library and the text."""

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# For each feature its CMake `option`, and the `text` that shows it in `library`.
FEATURES: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("features.json").read_text()
)


def shows(folder: Path, feature: str) -> bool:
    """Whether a library in `folder` has the text of a feature."""
    evidence = FEATURES[feature]
    path = folder / evidence["library"]
    if not path.is_file():
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(evidence["text"].encode()) >= 0
