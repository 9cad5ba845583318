"""Slates from a trained model: users in, a table of slates out, batch by batch, to be gone on with after a crash.

Every batch of users is kept beside the output as soon as it is decoded, with what the decoder had learnt by then. A run
that was stopped and is started again decodes what is missing and ends with the same file; one that would be asked anything
else (other values, histories, settings) is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import spdd

from .decode.arrays import eligible_items
from .files import atomic, write_atomically
from .policy_file import Policy
from .table import Target
from .table.rerank import STATUS, Summary, Tally, count, given, tally_of
from .trained import Asked

BATCH = 256  # users decoded together


def slate_table(
    policy: Policy,
    model: Any,
    items: np.ndarray,
    columns: Mapping[str, np.ndarray],
    asked: Asked,
    target: Target,
    *,
    folder: Path,
    run: Mapping[str, Any],
    batch: int = BATCH,
    compare: bool = True,
    progress: Callable[[int], None] = lambda users: None,
) -> Summary:
    """Write a slate for every user to `target`.

    items:   (M,) their names.  columns: (M,) values and labels by name, as the policy asks for them
    folder:  where batches are kept until all are done; the caller removes it then
    run:     says whose they are, as far as it is not seen here: weights, and how the model is asked
    compare: decode everything once more without objectives, to say what these cost
    """
    if not len(asked.user):
        raise ValueError("there is no user to make a slate for. Ask for another part of the data, or for more users.")
    decoder = policy.decoder(columns)
    plain = spdd.Greedy(slots=policy.slots, scale=decoder.scale)
    tallies = [*map(tally_of, policy.objectives, decoder.objectives)]
    summary = Summary(decoder.scale, policy.slots, tallies)
    batches = [slice(at, min(at + batch, len(asked.user))) for at in range(0, len(asked.user), batch)]
    whose = {
        **run,
        "spdd": spdd.__version__,
        "policy": policy.model_dump(mode="json"),
        "batch": batch,
        "compare": compare,
        "items": digest(items),
        "columns": {name: digest(columns[name]) for name in policy.columns},
        "users": digest(
            asked.user, *(part for rows in batches for part in (asked.histories(rows), asked.exclude(rows)))
        ),
    }
    parts = Parts(folder, whose, decoder)
    for number, rows in enumerate(batches):
        if number >= parts.done:
            exclude = asked.exclude(rows)
            slate = decoder.generate(model, asked.histories(rows), exclude=exclude).numpy()
            rival = plain.generate(model, asked.histories(rows), exclude=exclude).numpy() if compare else slate
            own = Summary(decoder.scale, policy.slots, [replace(tally) for tally in tallies])
            count(own, decoder, slate, rival, open_items(exclude, asked.histories(rows), rows, len(items)))
            parts.add(slates_frame(asked.user[rows], items, slate, policy, decoder, columns), own)
        progress(rows.stop - rows.start)
    for frame, own in parts.read():
        target.add(frame)
        summary = _added(summary, own)
    target.finish()
    return summary


class Parts:
    """The batches decoded so far, in order, in a folder: their slates, their counts, and what was learnt with the last."""

    def __init__(self, folder: Path, whose: Mapping[str, Any], decoder: Any):
        self.folder, self.decoder = folder, decoder
        name, self.text = folder / "whose.json", json.dumps(whose, sort_keys=True, default=str)
        begun = name.exists() and (folder / "000000.json").exists()
        if begun and (there := name.read_text(encoding="utf-8")) != self.text:
            raise ValueError(
                f"'{folder}' holds the beginning of another run, with other {_differs(there, self.text)}. Start that one again, "
                f"or give it up: rm -r '{folder}'."
            )
        if not name.exists() and folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"'{folder}' is where batches are kept until the slates are done, and it holds something else. Move it away."
            )
        # A part counts once its counts are there, which are written after its slates.
        self.done = 0
        while begun and (folder / f"{self.done:06}.json").exists():
            self.done += 1
        if self.done and self._learns:
            decoder.load(folder / f"{self.done - 1:06}.state")

    @property
    def _learns(self) -> bool:
        return hasattr(self.decoder, "save")

    def add(self, frame: pl.DataFrame, summary: Summary) -> None:
        if not self.done:  # a run that fails before has left nothing
            self.folder.mkdir(exist_ok=True)
            write_atomically(self.folder / "whose.json", self.text)
        name = self.folder / f"{self.done:06}"
        with atomic(name.with_suffix(".arrow")) as file:  # on the disk before its counts are, which vouch for it
            frame.write_ipc(file)
        if self._learns:
            self.decoder.save(name.with_suffix(".state"))
        counts = asdict(summary) | {"status": summary.status.tolist()}
        write_atomically(name.with_suffix(".json"), json.dumps(counts))
        name.with_name(f"{self.done - 1:06}.state").unlink(missing_ok=True)
        self.done += 1

    def read(self) -> Iterator[tuple[pl.DataFrame, Summary]]:
        for number in range(self.done):
            name = self.folder / f"{number:06}"
            counts = json.loads(name.with_suffix(".json").read_text(encoding="utf-8"))
            tallies = [Tally(**tally) for tally in counts.pop("objectives")]
            status = np.array(counts.pop("status"))
            yield pl.read_ipc(name.with_suffix(".arrow")), Summary(**counts, objectives=tallies, status=status)


def slates_frame(user, items, slate, policy: Policy, decoder, columns) -> pl.DataFrame:
    """A row per filled slot: user, slot, item, score, what it gave each objective, prices at the end, status."""
    row, slot = np.nonzero(slate.items >= 0)
    chosen = slate.items[row, slot]
    frame = {
        "user": user[row],
        "slot": (slot + 1).astype(np.int32),
        "item": items[chosen],
        "score": slate.relevance[row, slot],
    }
    for objective in decoder.objectives:
        frame[objective.name] = given(objective.value, slate.items)[row, slot]
    for c, objective in enumerate(decoder.objectives):
        frame["dual" if len(decoder.objectives) == 1 else f"dual {objective.name}"] = slate.dual[row, c]
    frame["status"] = STATUS[slate.status[row]]
    return pl.DataFrame(frame)


def open_items(exclude: Any, histories: Any, rows: slice, items: int) -> np.ndarray:
    """(R, M) bool, what each row may have."""
    like = torch.zeros(()).expand(rows.stop - rows.start, items)
    found = eligible_items(exclude, histories, like)
    return np.ones(like.shape, dtype=bool) if found is None else found.numpy()


def digest(*given: Any) -> str:
    """16 hex digits that tell this from anything else. given: arrays, tensors, texts, numbers, or lists or tuples of such"""
    found = hashlib.sha256()

    def add(x: Any) -> None:
        if isinstance(x, torch.Tensor):
            x = x.detach().cpu().numpy()
        if isinstance(x, np.ndarray) and x.dtype != object:
            found.update(f"{x.dtype.str}{x.shape}".encode())
            found.update(x.tobytes())
        elif isinstance(x, list | tuple | np.ndarray):
            found.update(f"[{len(x)}".encode())
            for one in x:
                add(one)
        else:
            found.update(f"{type(x).__name__} {x!r}\0".encode())

    for x in given:
        add(x)
    return found.hexdigest()[:16]


def _differs(there: str, here: str) -> str:
    """In words, in what two runs differ."""
    try:
        then, now = json.loads(there), json.loads(here)
        return " and ".join(k for k in now | then if now.get(k) != then.get(k))
    except (ValueError, TypeError, AttributeError):
        return "words"


def _added(one: Summary, other: Summary) -> Summary:
    """The counts of both."""
    summed = {
        n: getattr(one, n) + getattr(other, n)
        for n in ("rows", "users", "filled", "few", "status", "relevance", "greedy")
    }
    tallies = [
        replace(a, **{n: getattr(a, n) + getattr(b, n) for n in ("gained", "greedy", "met", "impossible")})
        for a, b in zip(one.objectives, other.objectives, strict=True)
    ]
    return replace(one, objectives=tallies, **summed)
