"""What `spdd data` does: raw files in, one prepared file out, and a screen that says what became of them."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import prepared
from .interactions import Interactions, Report, Split
from .lines import Progress
from .split import Core, at_time, k_core, leave_last, unknown

KINDS = ("amazon", "kuairand", "movielens", "playlists", "table")
PARTS = prepared.PARTS


class Summary(NamedTuple):
    """What was read, what is left after the core, and what the split holds.

    read:    users, items and events
    kept:    the same after a core of all events
    items:   how many items train has
    parts:   users and events of train, validation and test
    unknown: held-out events of items that are not in train, of validation and test
    """

    kind: str
    name: str
    out: Path
    report: Report
    read: tuple[int, int, int]
    kept: tuple[int, int, int]
    core: str
    split: str
    items: int
    parts: dict[str, tuple[int, int]]
    unknown: tuple[int, int]
    attributes: dict[str, float]
    fingerprint: str
    seconds: float


def prepare(
    kind: str,
    path: str | Path,
    out: str | Path,
    *,
    core: Core = 0,
    core_of: str = "train",
    split: str = "last",
    n: int = 1,
    at: int | None = None,
    validation_at: int | None = None,
    share: float = 0.1,
    most_bad: float = 0.01,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Summary:
    """Read raw files, filter and split them, and write the split to `out`.

    kind:    one of KINDS: whose format it is
    core:    the least events of a user and of an item; 0 keeps all
    core_of: "train" counts train events alone, after the cut, so that nothing leaks; "all" filters before the cut, as
             published results do, and lets held-out events decide who stays
    split:   "last" holds out the last `n` events of each user, "time" everything from a moment on
    at, validation_at, share: see `split.at_time`
    progress: is told how many bytes more of the raw files have been read
    options: what the loader takes besides: columns of a table, metadata elsewhere
    """
    began = time.perf_counter()
    _check(kind, out, core_of, split, at, validation_at)
    loader = importlib.import_module(f".{kind}", __package__)
    _known(kind, loader.read, options or {})
    data = loader.read(path, most_bad=most_bad, progress=progress, **(options or {}))
    read = _size(data)
    users, items = (core, core) if isinstance(core, int) else core
    if core_of == "all" and core:
        data = k_core(data, users, items)
    kept = _size(data)
    late = core if core_of == "train" else 0
    if split == "last":
        made, how = leave_last(data, n, core=late), f"the last {n} of each user, the {n} before for validation"
    else:
        made = at_time(data, at=at, validation_at=validation_at, share=share, core=late)
        how = f"from {_moments(made)} on"
    settings = {"kind": kind, "name": data.name, "core": [users, items], "core_of": core_of, "split": how}
    prepared.save(made, out, **settings)
    return Summary(
        kind,
        data.name,
        Path(out),
        data.report,
        read,
        kept,
        f"{users} per user, {items} per item, of {'train' if core_of == 'train' else 'all'} events" if core else "",
        how,
        len(made.items.id),
        {p: (len(getattr(made, p)), len(getattr(made, p).item)) for p in PARTS},
        (unknown(made.validation), unknown(made.test)),
        _filled(made),
        made.items.fingerprint(),
        time.perf_counter() - began,
    )


def describe(summary: Summary) -> str:
    """One screen on what was prepared."""
    s, r = summary, summary.report
    lines = [f"{s.name}: {r.read:,} events read in {s.seconds:.1f} s", *_skipped("events", r.skipped, r.duplicates)]
    if r.items_read:
        lines += [
            f"{r.items_read:,} descriptions of items read",
            *_skipped("items", r.items_skipped, r.items_duplicates),
        ]
    rows = [("", "users", "items", "events", "density"), ("read", *_counts(s.read), _density(*s.read))]
    if s.kept != s.read:
        rows.append(("kept", *_counts(s.kept), _density(*s.kept)))
    train = (s.parts["train"][0], s.items, s.parts["train"][1])
    rows.append(("train", *_counts(train), _density(*train)))
    rows += [(p, f"{s.parts[p][0]:,}", "", f"{s.parts[p][1]:,}", "") for p in PARTS[1:]]
    wide = [max(len(row[i]) for row in rows) for i in range(5)]
    lines += [
        "  ".join([row[0].ljust(wide[0]), *(c.rjust(w) for c, w in zip(row[1:], wide[1:], strict=True))]).rstrip()
        for row in rows
    ]
    lines += [f"held out: {s.split}"]
    if s.core:
        lines += [f"core: {s.core}"]
    if any(s.unknown):
        lines += [f"of items that train does not know: {s.unknown[0]:,} validation and {s.unknown[1]:,} test events"]
    if empty := [p for p in PARTS[1:] if not s.parts[p][0]]:
        what = "nothing decides when to stop training" if empty[0] == "validation" else "slates cannot be judged"
        lines += [f"warning: no user is left for {' and '.join(empty)}: {what}. Hold out less: --n, --share, --at"]
    if s.attributes:
        lines += ["items with " + ", ".join(f"{name} {share:.0%}" for name, share in s.attributes.items())]
    return "\n".join([*lines, f"wrote {s.out}, catalog {s.fingerprint}"])


def _check(kind: str, out: str | Path, core_of: str, split: str, at: int | None, validation_at: int | None) -> None:
    for name, given, known in (
        ("kind", kind, KINDS),
        ("core_of", core_of, ("train", "all")),
        ("split", split, ("last", "time")),
    ):
        if given not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {given!r}.")
    if split == "last" and (at is not None or validation_at is not None):
        raise ValueError(
            "`at` and `validation_at` cut at a moment, and the split is by each user's last events. Say split='time'."
        )
    if Path(out).suffix != ".npz":
        raise ValueError(f"a prepared file must end in .npz, got '{out}'.")
    if Path(out).is_dir():
        raise ValueError(f"'{out}' must be a file to write, and is a folder.")


def _known(kind: str, read: Any, options: Mapping[str, Any]) -> None:
    """Refuse what the loader does not take."""
    ours = ("path", "most_bad", "progress")
    known = {name: p.default for name, p in inspect.signature(read).parameters.items() if name not in ours}
    for name, given in options.items():
        if name not in known:
            raise ValueError(f"the loader '{kind}' has no setting '{name}'. There is: {', '.join(known)}.")
        if isinstance(known[name], bool) != isinstance(given, bool):
            raise ValueError(f"setting '{name}' of the loader '{kind}' must be like {known[name]!r}, got {given!r}.")


def _size(data: Interactions) -> tuple[int, int, int]:
    return data.users, len(data.items), len(data.events)


def _counts(size: tuple[int, int, int]) -> list[str]:
    return [f"{n:,}" for n in size]


def _density(users: int, items: int, events: int) -> str:
    return f"{events / (users * items):.4%}" if users and items else ""


def _skipped(what: str, reasons: Mapping[str, int], duplicates: int) -> list[str]:
    told = [f"{n:,} {why}" for why, n in sorted(reasons.items(), key=lambda r: -r[1])]
    told += [f"{duplicates:,} duplicate{'s' if duplicates > 1 else ''}"] if duplicates else []
    return [f"  skipped {what}: {', '.join(told)}"] if told else []


def _moments(split: Split) -> str:
    """When the test begins, in words."""
    times = split.test.time if len(split.test.time) else split.train.time
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(times.min()) / 1000))


def _filled(split: Split) -> dict[str, float]:
    """Per attribute, the share of items for which it is known."""
    return {
        name: sum(not _unknown(v) for v in values.tolist()) / max(1, len(values))
        for name, values in split.items.attributes.items()
    }


def _unknown(value: Any) -> bool:
    return value is None or value == [] or value != value
