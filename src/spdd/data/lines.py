"""Text files in batches of lines, and a tally of those that are malformed.

A file may be gzipped, whatever its name says. Lines are cut at newlines before anything is decoded, so one line with
a wrong encoding spoils that line alone. No file is ever held as a whole.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

BATCH = 1 << 24  # bytes read at a time
LONGEST = 1 << 26  # bytes of one line; past this it is not a file of lines
Progress = Callable[[int], Any]  # is told how many bytes more of the files have been read


class Lines(NamedTuple):
    """Some lines of a file.

    text:   blank lines and those that are not in the encoding are None
    first:  the number of the first one
    """

    path: Path
    text: list[str | None]
    first: int


class Tally:
    """Counts rows, and the malformed ones by reason; refuses the data when these are too many.

    most_bad: the largest share of rows that may be malformed
    what:     how messages call a row
    """

    def __init__(self, most_bad: float, what: str = "lines") -> None:
        if not isinstance(most_bad, int | float) or not 0 <= most_bad <= 1:
            raise ValueError(f"`most_bad` must be a share of lines between 0 and 1, got {most_bad!r}.")
        self.most_bad, self.what = most_bad, what
        self.read = 0
        self.skipped: Counter[str] = Counter()
        self.first: tuple[Path, int, str] | None = None

    def skip(self, path: Path, line: int, reason: str, count: int = 1) -> None:
        """Note so many malformed rows; `line` is the first of them."""
        self.skipped[reason] += count
        if self.first is None or (self.first[0] == path and line < self.first[1]):  # rules are tried one by one
            self.first = (path, line, reason)

    def check(self) -> None:
        """To be called when all is read: a share of bad lines can be told only then."""
        bad = self.skipped.total()
        if self.first and bad > self.most_bad * self.read:
            path, line, reason = self.first
            raise ValueError(
                f"at most {self.most_bad:.4g} of the {self.what} may be malformed, got {bad:,} of {self.read:,} "
                f"({', '.join(f'{n:,} {r}' for r, n in self.skipped.most_common())}). The first is line {line} of "
                f"'{path}': {reason}. Mend the file, or raise `most_bad` (--most-bad) if it can be spared."
            )


def batches(path: Path, tally: Tally, *, encoding: str = "utf-8", progress: Progress | None = None) -> Iterator[Lines]:
    """A file's lines without their ends, some megabytes at a time. Lines that are not blank are counted as read."""
    first = 1
    for block in _blocks(path, progress):
        lines = block.split(b"\n")
        text = _decoded(lines, encoding)
        if first == 1 and text[0]:
            text[0] = text[0].removeprefix("\ufeff")
        if undecoded := [i for i, line in enumerate(text) if line is None]:
            tally.skip(path, first + undecoded[0], f"not {encoding.upper()}", len(undecoded))
        text = [line.rstrip("\r") if line else line for line in text]
        text = [line if line and not line.isspace() else None for line in text]
        tally.read += sum(1 for line in lines if line and not line.isspace())
        yield Lines(path, text, first)
        first += len(lines)


def files(path: str | Path, patterns: tuple[str, ...], what: str) -> list[Path]:
    """The files that match, gzipped or not, by name: in a folder (or its `data`, as some are unpacked), or the one file given."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"'{path}' must be a file or folder with {what}, and does not exist. Check the path.")
    if path.is_file():
        return [path]
    for folder in (path, path / "data"):
        found = {f for p in patterns for suffix in ("", ".gz") for f in folder.glob(p + suffix) if f.is_file()}
        if found:
            return sorted(found)
    return []


def need(found: list[Path], path: str | Path, patterns: tuple[str, ...], what: str) -> list[Path]:
    if not found:
        raise ValueError(
            f"'{path}' must hold {what}, and has no file named {' or '.join(patterns)}. Give the folder they are in."
        )
    return found


def size(paths: list[Path]) -> int:
    """Bytes on disk: what `progress` will have been told in the end."""
    return sum(p.stat().st_size for p in paths)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped where they are gzip."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) if zipped else raw as file:
                yield cast("IO[bytes]", file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"'{path}' must be a whole gzip file, and is cut off or damaged ({error}). Fetch it again."
            ) from error


def _blocks(path: Path, progress: Progress | None) -> Iterator[bytes]:
    """The file cut at newlines."""
    held = b""
    with opened(path) as file:
        while more := file.read(BATCH):
            whole, cut, rest = more.rpartition(b"\n")
            if cut:
                yield held + whole
                held = rest
            else:
                held += more
            if len(held) > LONGEST:
                raise ValueError(
                    f"'{path}' must be a text of lines, and has one of over {LONGEST >> 20} MB. It is something else."
                )
    if held:
        yield held
    if progress:
        progress(path.stat().st_size)


def _decoded(lines: list[bytes], encoding: str) -> list[str | None]:
    try:
        return list(b"\n".join(lines).decode(encoding).split("\n"))
    except UnicodeDecodeError:
        return [_one(line, encoding) for line in lines]


def _one(line: bytes, encoding: str) -> str | None:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return None
