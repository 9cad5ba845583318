"""Writing a table whole or not at all.

Frames are kept beside the target in a folder of their own, put together there, and moved over the target in one
step. Whatever happens before that step, an old file stays as it was and no new one appears.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl

from .source import plainly


class Target:
    """A context: `add` frames, then `finish`. path: None for standard output."""

    def __init__(self, path: str | None, form: str):
        self.form = form
        self.name = "standard output" if path is None else f"'{path}'"
        self.parts: list[Path] = []
        self.path: Path | None = None
        if path is None:
            return
        self.path = Path(path).resolve()  # a link stays a link: what it names is replaced
        if self.path.is_dir():
            raise ValueError(
                f"output {self.name} is a folder. Name a file in it, e.g. '{Path(path) / 'slates.parquet'}'."
            )
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"output {self.name} must be a file, or - for standard output.")
        if not self.path.parent.is_dir():
            raise ValueError(
                f"the folder of output {self.name} does not exist. Make it first: mkdir -p '{Path(path).parent}'."
            )

    def __enter__(self) -> Target:
        try:
            beside = None if self.path is None else self.path.parent
            name = "spdd" if self.path is None else self.path.name
            self.folder = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=beside))
        except OSError as error:
            raise ValueError(f"output {self.name} cannot be written: {error.strerror}.") from None
        return self

    def __exit__(self, *failure) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, frame: pl.DataFrame) -> None:
        path = self.folder / f"part-{len(self.parts):06}.arrow"
        with plainly(f"output {self.name} cannot be written"):
            frame.write_ipc(path)
        self.parts.append(path)

    def finish(self, before: Callable[[], None] = lambda: None) -> None:
        """Put the parts together and the file in its place.

        before: done in between, when writing can no longer fail for want of space: what belongs to the file and must
                neither be missing when it is there, nor be there when it could not be written
        """
        whole = self.folder / "whole"
        with plainly(f"output {self.name} cannot be written"):
            parts = pl.scan_ipc(self.parts)
            sink = {"csv": parts.sink_csv, "parquet": parts.sink_parquet, "arrow": parts.sink_ipc}[self.form]
            sink(whole)
            with whole.open("rb") as file:
                os.fsync(file.fileno())
        before()
        with plainly(f"output {self.name} cannot be written"):
            if self.path is None:
                with whole.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                return
            os.replace(whole, self.path)
