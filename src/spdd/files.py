"""Writing a file so that a crash never leaves half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Read once: it can only be read by setting it, which other threads would notice.
_UMASK = os.umask(0o022)
os.umask(_UMASK)


def write_atomically(path: str | Path, text: str) -> None:
    """Replace `path` by `text` in one step: written beside it first, then renamed over it."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of '{path}' does not exist. Make it first: mkdir -p '{path.parent}'.")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or Path("."))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_UMASK)  # as `open` would have made it: temporary files are their owner's alone
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
