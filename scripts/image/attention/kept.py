"""Compiled kernels of FlashAttention-4 in a folder, for the processes that come later.

FlashAttention-4 has such a cache itself. A call waits 15 s for a lock there and then fails, and
whatever a file holds is loaded as machine code. Here the name of a file has the checksum of its
content, and a file is renamed into place once it is whole. So nothing is locked, and a damaged file
is compiled again. The checksum guards against damage, not against who may write to the folder.
"""

import contextlib
import hashlib
import pickle
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_image_attention import say

FUNCTION = "func"  # the name of the compiled function in a file


class Folder:
    """The files of one folder, each a compiled function.

    `path` is None where nothing is kept. `load` makes a function of a file. After an error of the
    file system the folder is left alone in this process, which is said once.
    """

    def __init__(self, path: Path | None, load: Callable[[Path], Any]) -> None:
        self.path = path
        self._load = load

    def find(self, name: str) -> Any:
        """The function of this name; None if there is none, or if its file is damaged."""
        if self.path is None:
            return None
        try:
            for file in sorted(self.path.glob(f"{name}.*.o")):
                function = self._read(file)
                if function is not None:
                    return function
        except OSError as error:
            self._leave(error)
        return None

    def _read(self, file: Path) -> Any:
        """The function of a file. A damaged file is removed."""
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # another process has just removed it
            return None
        if hashlib.sha256(content).hexdigest() == file.name.split(".")[1]:
            with contextlib.suppress(Exception):
                return self._load(file)
        say(f"{file} is damaged; this kernel of FlashAttention-4 is compiled again")
        with contextlib.suppress(OSError):
            file.unlink()
        return None

    def keep(self, name: str, function: Any) -> bool:
        """Write a compiled function for later processes. False if it cannot be kept."""
        if self.path is None:
            return False
        part = self.path / f".{name}.{secrets.token_hex(8)}.o"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            function.export_to_c(object_file_path=str(part), function_name=FUNCTION)
            checksum = hashlib.sha256(part.read_bytes()).hexdigest()
            part.rename(self.path / f"{name}.{checksum}.o")
        except Exception as error:  # noqa: BLE001  the function is compiled, kept or not
            with contextlib.suppress(OSError):
                part.unlink()
            self._leave(error)
            return False
        return True

    def _leave(self, error: Exception) -> None:
        say(f"kernels of FlashAttention-4 are not kept in {self.path}: {error}")
        self.path = None


class Kernels:
    """Compiled functions by key, in memory and in a folder: a compile_cache of FlashAttention-4.

    It notes which function was taken last, for each thread by itself: a program may call
    FlashAttention-4 beside us. A line names `step` when one is compiled, unless it is "".
    """

    def __init__(self, known: dict[object, Any], folder: Folder, step: str = "") -> None:
        self._known, self._folder, self._step = known, folder, step
        self._mine = threading.local()

    @property
    def last(self) -> Any:
        """The function that this thread took last."""
        return self._mine.last

    def __contains__(self, key: object) -> bool:
        self._mine.began = time.monotonic()
        if key not in self._known:
            function = self._folder.find(_name(key))
            if function is not None:
                self._known[key] = function
        return key in self._known

    def __getitem__(self, key: object) -> Any:
        self._mine.last = function = self._known[key]
        return function

    def __setitem__(self, key: object, function: Any) -> None:
        seconds = time.monotonic() - self._mine.began
        self._known[key] = function
        kept = self._folder.keep(_name(key), function)
        if self._step:
            place = f"kept in {self._folder.path}" if kept else "not kept"
            say(f"compiled attention's {self._step} (FlashAttention-4) in {seconds:.1f} s, {place}")

    def clear(self) -> None:
        """Forget what is in memory."""
        self._known.clear()


def _name(key: object) -> str:
    """The name of a key, the same in each process: FlashAttention-4 names its own files so."""
    return hashlib.sha256(pickle.dumps(key)).hexdigest()
