"""Many policies on the same users: every point is computed once, kept on disk, and never again.

A point is a policy at one setting with one seed, in one domain (users, what they did later, an objective's values). What it
gave is kept in two files under the domain's folder, named by a key that is a digest of all that decides the answer:

    domain.json, domain.npz     who was asked, and what there is to find
    points/KEY.npz              what became of every user's slate (arrays below)
    points/KEY.json             the record; written last and at once, so that where it is, the point is whole
    records.jsonl               the records of the last sweep, a line each, in the order of its points

A record (version 1) has
    version, key, domain, users, slots, batch, floor (that `attained` and `shortfall` are judged by)
    curve      the family this point belongs to, as tables and charts call it: "WA", "SPDD as printed", ...
    knob       what is varied along the curve, e.g. {"price": 0.5} or {"asked": 0.3} (share of the slots)
    decoder, settings, objective    how the policy is made, for people and programs
    seed       of the policy; policies that draw nothing have seed 0
    metrics    by name, as in `metrics.measure`; null where no user had anything to say
    seconds    the time it took

The arrays are `hit` and `filled` (U * K bits, packed), and `value`, (U * K) bits where it is 0/1, else float32 (U, K).
domain.npz has `relevant`, `wanted` (U,) (see `metrics.Truth`) and `reachable` (U,), the most value a slate could hold.
`read` gives all of it back. Killed at any moment and started again, a sweep goes on with the points that are missing and ends
with the same files; only `seconds` differ.

Nothing here knows models or decoders: a policy is a function, from what some users are to their slates.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..files import atomic, write_atomically
from .metrics import Outcome, Truth, measure, outcome_of, truth_of

VERSION = 1

Policy = Callable[[Any], Any]  # what some users are -> their Slate


class Domain(NamedTuple):
    """Users to be served, and what is known of them afterwards. U users, K slots, M items.

    name:    as tables call it
    users:   how many
    asked:   rows (a slice) -> what a policy takes for these users
    targets: (U, T) distinct items each consumed later, -1 for none
    value:   (M,) or (U, M) what items give the objective
    floor:   value units per slate that slates should have
    digest:  names all that policies see: data, model, users. It is part of every point's key
    slots:   items per slate
    reachable: (U,) the most value a slate could hold; None for the sum of the largest values
    about:   whatever else should be remembered
    """

    name: str
    users: int
    asked: Callable[[slice], Any]
    targets: np.ndarray
    value: np.ndarray
    floor: float
    digest: str
    slots: int = 10
    reachable: np.ndarray | None = None
    about: Mapping[str, Any] = {}


class Point(NamedTuple):
    """A policy at one setting, said in plain values that go into its record and its key."""

    curve: str
    knob: Mapping[str, float]
    decoder: str
    settings: Mapping[str, Any] = {}
    objective: Mapping[str, Any] = {}
    seed: int = 0


class Bench(NamedTuple):
    """A domain, and how to make the policy of a point for it."""

    domain: Domain
    policy: Callable[[Point], Policy]


class Result(NamedTuple):
    """A point that is done."""

    record: dict[str, Any]
    outcome: Outcome


def sweep(
    load: Callable[[], Bench],
    points: Sequence[Point],
    folder: str | Path,
    *,
    batch: int = 256,
    workers: int = 1,
    progress: Callable[[int], None] = lambda points: None,
) -> list[dict[str, Any]]:
    """The records of all points, in order; those that are there already are not computed again.

    load:     makes the domain and its policies. With several workers it is called in each of them, so it must be a function
              of a module (or a functools.partial of one)
    batch:    users asked together
    progress: told how many points have just been done
    """
    bench = load()
    domain, folder = bench.domain, Path(folder)
    (folder / "points").mkdir(parents=True, exist_ok=True)
    keys = [key_of(domain, point, batch) for point in points]
    if len(set(keys)) < len(keys):
        twice = points[next(i for i, key in enumerate(keys) if key in keys[:i])]
        raise ValueError(f"`points` must differ, and {_said(twice)} is there twice.")
    write_domain(domain, folder)
    left = [(point, key) for point, key in zip(points, keys, strict=True) if not _record(folder, key).exists()]
    progress(len(points) - len(left))
    if workers > 1 and len(left) > 1:
        # Fresh processes: forked ones would inherit torch's threads half way. They end when this one does.
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(workers, len(left)), _begin, (load, folder, batch)) as pool:
            for _ in pool.imap_unordered(_work, left):
                progress(1)
    else:
        for point, key in left:
            _one(bench, point, key, folder, batch)
            progress(1)
    records = [json.loads(_record(folder, key).read_text("utf-8")) for key in keys]
    write_atomically(folder / "records.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    return records


def key_of(domain: Domain, point: Point, batch: int) -> str:
    """16 hex digits that name a point: the sha256 of everything that decides its slates and how they are judged."""
    said = [VERSION, domain.digest, domain.users, domain.slots, domain.floor, batch, *point]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def read(folder: str | Path) -> Swept:
    """What a sweep left: every record of its last run, and the arrays on demand."""
    folder = Path(folder)
    try:
        about = json.loads((folder / "domain.json").read_text("utf-8"))
        records = [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]
        with np.load(folder / "domain.npz") as held:
            arrays = {name: held[name] for name in ("relevant", "wanted", "reachable")}
    except FileNotFoundError as error:
        raise ValueError(
            f"'{folder}' must hold a whole sweep, and has no {Path(error.filename).name}. Run `spdd evaluate` again: it "
            "goes on where it stopped."
        ) from None
    if any(record["version"] != VERSION for record in records):
        raise ValueError(f"'{folder}' was written by another version of spdd. Run `spdd evaluate` into a new folder.")
    return Swept(folder, about, Truth(arrays["relevant"], arrays["wanted"]), arrays["reachable"], records)


class Swept(NamedTuple):
    """A sweep on disk. truth, reachable: of its users"""

    folder: Path
    about: dict[str, Any]
    truth: Truth
    reachable: np.ndarray
    records: list[dict[str, Any]]

    def curves(self) -> list[str]:
        """The names of all families, in order."""
        return list(dict.fromkeys(record["curve"] for record in self.records))

    def of(self, curve: str) -> list[Result]:
        """The points of one family."""
        found = [Result(r, self.outcome(r)) for r in self.records if r["curve"] == curve]
        if not found:
            raise ValueError(f"'{self.folder}' has no curve '{curve}'. It has: {', '.join(self.curves())}.")
        return found

    def outcome(self, record: Mapping[str, Any]) -> Outcome:
        """What became of the slates of one point."""
        shape = record["users"], record["slots"]
        with np.load(self.folder / "points" / f"{record['key']}.npz") as held:
            value = held["value"]
            return Outcome(
                _unpacked(held["hit"], shape),
                _unpacked(value, shape).astype(np.float32) if value.dtype == np.uint8 else value,
                _unpacked(held["filled"], shape),
            )


def together(results: Sequence[Result]) -> Outcome:
    """The outcomes of several points side by side: (P, U, K)."""
    return Outcome(*(np.stack(parts) for parts in zip(*(r.outcome for r in results), strict=True)))


# ---- one point ------------------------------------------------------------------------------------------------------


def _one(bench: Bench, point: Point, key: str, folder: Path, batch: int) -> None:
    domain, begun = bench.domain, time.perf_counter()
    try:
        policy = bench.policy(point)
        items = np.concatenate([_items(policy(domain.asked(rows))) for rows in cut(domain.users, batch)])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_said(point)} cannot be served in domain '{domain.name}': {error}") from error
    outcome = outcome_of(items, domain.targets, domain.value)
    seconds = time.perf_counter() - begun
    found = measure(outcome, truth_of(domain.targets, domain.value), domain.floor)
    value = outcome.value
    _save(
        folder / "points" / f"{key}.npz",
        hit=np.packbits(outcome.hit),
        filled=np.packbits(outcome.filled),
        value=np.packbits(value > 0) if np.isin(value, (0, 1)).all() else value,
    )
    record = {
        "version": VERSION, "key": key, "domain": domain.name, "users": domain.users, "slots": domain.slots, "batch": batch,
        "floor": domain.floor, **point._asdict(),
        "metrics": {name: _plain(metric.value()) for name, metric in found.items()},
        "seconds": round(seconds, 3),
    }  # fmt: skip
    write_atomically(_record(folder, key), json.dumps(record) + "\n")


def _items(slate: Any) -> np.ndarray:
    """(R, K) items of a slate, from whatever device."""
    return np.asarray(slate.items.cpu() if hasattr(slate.items, "cpu") else slate.items)


def cut(users: int, batch: int) -> Iterator[slice]:
    """All users in order, so many at a time.

    >>> list(cut(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(at, min(at + batch, users)) for at in range(0, users, batch))


_worker: tuple[Bench, Path, int]  # in worker processes alone


def _begin(load, folder, batch):
    """What a worker does first."""
    global _worker
    _worker = load(), folder, batch


def _work(one):
    bench, folder, batch = _worker
    point, key = one
    _one(bench, point, key, folder, batch)


# ---- files ----------------------------------------------------------------------------------------------------------


def write_domain(domain: Domain, folder: Path) -> None:
    """domain.json and domain.npz. A folder that holds another domain is refused."""
    about = {
        "version": VERSION, "name": domain.name, "users": domain.users, "slots": domain.slots, "floor": domain.floor,
        "digest": domain.digest, "about": dict(domain.about),
    }  # fmt: skip
    name = folder / "domain.json"
    if name.exists() and (there := json.loads(name.read_text("utf-8"))) != json.loads(json.dumps(about)):
        differs = next(k for k in about if there.get(k) != about[k])
        raise ValueError(
            f"'{folder}' holds a sweep of something else: its {differs} is {there.get(differs)!r}, now it is "
            f"{about[differs]!r}. Give another folder, or remove that one."
        )
    reachable = domain.reachable
    if reachable is None:
        best = -np.sort(-np.atleast_2d(domain.value), axis=1)[:, : domain.slots].sum(1)
        reachable = np.broadcast_to(best, (domain.users,))
    _save(folder / "domain.npz", reachable=reachable, **truth_of(domain.targets, domain.value)._asdict())
    write_atomically(name, json.dumps(about) + "\n")


def _record(folder: Path, key: str) -> Path:
    return folder / "points" / f"{key}.json"


def _save(path: Path, **arrays: np.ndarray) -> None:
    """An .npz, whole or not at all."""
    with atomic(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _unpacked(bits: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return np.unpackbits(bits, count=math.prod(shape)).reshape(shape).astype(bool)


def _plain(number: Any) -> float | None:
    return float(number) if np.isfinite(number) else None


def _said(point: Point) -> str:
    knob = ", ".join(f"{name} {value:g}" for name, value in point.knob.items())
    return f"point '{point.curve}'" + (f" at {knob}" if knob else "")
