"""Writing a file so that a crash never leaves half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Read once: it can only be read by setting it, which other threads would notice.
_UMASK = os.umask(0o022)
os.umask(_UMASK)


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes the place of `path` in one step when the block ends.

    It is written beside `path` and on the disk before it is renamed: a reader, a crash, or an error in the block finds the
    old file or the new one, never a part, and nothing else is left.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of '{path}' does not exist. Make it first: mkdir -p '{path.parent}'.")
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o666 & ~_UMASK)  # as `open` would have made it: temporary files are their owner's alone
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def write_atomically(path: str | Path, text: str) -> None:
    """Replace `path` by `text` in one step."""
    with atomic(path) as file:
        file.write(text.encode())
