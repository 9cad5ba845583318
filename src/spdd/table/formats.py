"""The file formats, and how one is told."""

from __future__ import annotations

from pathlib import Path

# Format -> the suffixes that mean it.
FORMATS = {"csv": (".csv",), "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc")}


def format_of(path: str | None, given: str | None, option: str) -> str:
    """The format of a file by its suffix, or as given. path: None for standard input or output. option: what says it

    >>> format_of("slates.feather", None, "--out-format"), format_of(None, None, "--out-format")
    ('arrow', 'csv')
    """
    if given is not None:
        if given not in FORMATS:
            raise ValueError(f"{option} must be one of {', '.join(FORMATS)}, got '{given}'.")
        return given
    if path is None:
        return "csv"
    suffix = Path(path).suffix.lower()
    for name, suffixes in FORMATS.items():
        if suffix in suffixes:
            return name
    known = ", ".join(s for suffixes in FORMATS.values() for s in suffixes)
    raise ValueError(
        f"the format of '{path}' must show in its suffix ({known}), got '{suffix}'."
        + (f" Or say it: {option} csv." if option.endswith("format") else "")
    )
