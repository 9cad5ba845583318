"""Run folders: `spdd train` makes them from prepared data, `spdd slate` opens them again.

A run folder holds best.pt, last.pt, metrics.jsonl (see `models.train`) and, where the model spells items, ids.npz beside
ids.json, which says how they were made. Which model is in it, its checkpoint says; whose items it knows, their fingerprint
says.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .data.interactions import Sequences, Split
from .data.shown import LABELS
from .files import write_atomically
from .models import checkpoint, train

PARTS = ("test", "validation", "all")
RUN_FILES = ("best.pt", "last.pt", "metrics.jsonl", "ids.npz", "ids.json")


def train_model(
    kind: str, split: Split, folder: Path, said: Mapping[str, Any], *, device: str | None = None, resume: bool = True
) -> train.Fitted:
    """Train a model of this kind on the split, into `folder`. said: settings of training and model, by name"""
    if kind not in MODELS:
        raise ValueError(f"the model must be one of {', '.join(MODELS)}, got '{kind}'.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a run needs a folder, and '{folder}' is a file. Name another with --out.")
    return MODELS[kind].train(split, folder, dict(said), train.device(device), resume)


def settings_for(
    kind: str, said: Mapping[str, Any], homes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """`said`, divided among its homes. homes: by home, the settings it takes, by name, with their defaults"""
    found: dict[str, dict[str, Any]] = {home: {} for home in homes}
    for name, value in said.items():
        home = next((h for h, known in homes.items() if name in known), None)
        if home is None:
            known = ", ".join(sorted(n for names in homes.values() for n in names))
            raise ValueError(f"model '{kind}' has no setting '{name}'. There is: {known}.")
        default = homes[home][name]
        # A whole number is as good as a number with a point where a number is asked for; no other kind is another's.
        fits = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
        if default is not None and (not fits or isinstance(value, bool) != isinstance(default, bool)):
            raise ValueError(f"setting '{name}' of model '{kind}' must be like {default!r}, got {value!r}.")
        found[home][name] = value
    return found


def defaults(made: type, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass with their defaults, None where there is none."""
    return {
        f.name: None if f.default is dataclasses.MISSING else f.default
        for f in dataclasses.fields(made)
        if f.name not in without
    }


class Asked(NamedTuple):
    """Who gets a slate, and from what. U users, M items.

    user:      (U,) names
    histories: rows (a slice) -> what the model starts from
    exclude:   rows -> (R, M) bool, or lists of item numbers, or "seen": what they must not get
    later:     rows -> for each user the items taken in the held-out part, which slates are judged by
    """

    user: np.ndarray
    histories: Callable[[slice], Any]
    exclude: Callable[[slice], Any]
    later: Callable[[slice], list[np.ndarray]]

    def first(self, users: int | None) -> Asked:
        """Only the first so many users; all of them for None."""
        return self._replace(user=self.user[:users])


class Opened(NamedTuple):
    """A trained model, ready to decode; how to ask it; and what tells its weights from others."""

    model: Any
    asked: Callable[[Split, str], Asked]
    digest: str = ""


def open_run(folder: Path, split: Split, *, device: str | None = None, beams: int | None = None) -> Opened:
    """The model of a run folder (or of a checkpoint), if it knows the items of this split."""
    path = folder / "best.pt" if folder.is_dir() else folder
    if not path.exists():
        raise ValueError(f"'{folder}' is no run folder: there is no '{path}'. Train one: spdd train --help.")
    kind = checkpoint.load(path, fingerprint=split.items.fingerprint()).kind
    if kind not in MODELS:
        raise ValueError(f"'{path}' holds a model of kind '{kind}'; known are {', '.join(MODELS)}.")
    if beams is not None and kind != "lmrec":
        raise ValueError(
            f"`beams` is for models that spell items (lmrec), and '{folder}' holds a '{kind}'. Leave it out."
        )
    opened = MODELS[kind].open(path, split, train.device(device), {} if beams is None else {"beams": beams})
    return opened._replace(digest=hashlib.sha256(path.read_bytes()).hexdigest()[:16])


# ---- who is asked --------------------------------------------------------------------------------------------------


def by_history(split: Split, part: str) -> Asked:
    """Slates that go on where histories end, without what was seen. part: whose users, "all" for everyone with all they did"""
    if part not in PARTS:
        raise ValueError(f"`part` must be one of {', '.join(PARTS)}, got {part!r}.")
    before = everything(split) if part == "all" else split.history(part)
    rows = before.lists()
    later = [before.item[:0]] * len(rows) if part == "all" else getattr(split, part).lists()
    return Asked(before.user, lambda some: rows[some], lambda some: "seen", lambda some: later[some])


def everything(split: Split) -> Sequences:
    """All that every user did, known items only."""
    parts = [split.train, split.validation, split.test]
    user = np.unique(np.concatenate([p.user for p in parts]))
    row = np.concatenate([np.searchsorted(user, p.user)[p.rows()] for p in parts])
    item, time = (np.concatenate([getattr(p, name) for p in parts]) for name in ("item", "time"))
    order = np.argsort(row, kind="stable")
    order = order[item[order] >= 0]
    return Sequences(user, np.searchsorted(row[order], np.arange(len(user) + 1)), item[order], time[order])


# ---- the models ----------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """How one kind of model is trained and opened."""

    train: Callable[..., train.Fitted]
    open: Callable[..., Opened]


def _train_sasrec(split, folder, said, device, resume):
    from .models.next_item import NextItem
    from .models.sasrec import Config, SASRec

    found = settings_for("sasrec", said, {"train": defaults(train.Settings), "model": defaults(Config)})
    settings = train.Settings(**found["train"])
    torch.manual_seed(settings.seed)
    model = SASRec(len(split.items.id), Config(**found["model"])).to(device)
    return train.fit(NextItem(model, split, settings), settings, folder, resume=resume)


def _open_sasrec(path, split, device, options):
    from .models import sasrec

    return Opened(sasrec.load(path, split.items.fingerprint()).to(device), by_history)


def _train_lmrec(split, folder, said, device, resume):
    """Ids first, unless the folder has them from an earlier start; then a small Llama, or the model at `path`."""
    from .catalog import Catalog
    from .models import lmrec, lmtask
    from .models.semantic_ids import ids_for

    small = {"width": 256, "layers": 4, "heads": 4, "dropout": 0.1}
    shared = {"history": 20, "beams": 20, "mean_of_open": True}
    ids = {
        "method": "residual_kmeans",
        "embed": "tfidf",
        "apart": "none",
        "text": None,
        "levels": 3,
        "bits": 8,
        "codes": 256,
    }
    homes = {
        "train": defaults(train.Settings),
        "small": small,
        "shared": shared,
        "ids": ids,
        "from": {"path": "", "rank": 16},
    }
    found = settings_for("lmrec", said, homes)
    settings = train.Settings(**found["train"])
    if found["from"] and found["small"]:
        raise ValueError(f"`path` names a model that has its sizes: leave out {', '.join(found['small'])}.")
    folder.mkdir(parents=True, exist_ok=True)
    name, how = folder / "ids.npz", folder / "ids.json"
    made = ids | found["ids"] | {"seed": settings.seed}
    if resume and name.exists():
        catalog = Catalog.load(name, items=split.items.fingerprint())
        _same_ids(how, made, found["ids"])
    else:
        catalog = ids_for(split.items, seed=settings.seed, **found["ids"])
        write_atomically(how, json.dumps(made) + "\n")
        catalog.save(name)
    catalog = catalog.preferring(split.popularity())  # of items that share an id, the one taken most often comes first
    make = lmrec.from_path if "path" in found["from"] else lmrec.small_llama
    model = make(catalog=catalog, seed=settings.seed, **found["small"], **found["shared"], **found["from"]).to(device)
    task = lmtask.LMTask(model, split, batch=settings.batch, seed=settings.seed)
    return train.fit(task, settings, folder, resume=resume)


def _same_ids(how: Path, made: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Ids that a run goes on with must be those that are asked for. said: what the settings name, of all that `made` has"""
    if not how.exists():  # ids that were put there, by whatever means: nothing can be asked of them
        if said:
            raise ValueError(
                f"'{how.with_suffix('.npz')}' holds ids already, and nothing tells how they were made: leave out "
                f"{', '.join(said)} to take them, or begin anew with --fresh."
            )
        return
    then = json.loads(how.read_text(encoding="utf-8"))
    other = [k for k in made if then.get(k) != made[k]]
    if other:
        changes = ", ".join(f"{k} {then.get(k)!r} then, {made[k]!r} now" for k in other)
        raise ValueError(
            f"the ids in '{how.parent}' were made with other settings: {changes}. Use those, another folder, or begin anew "
            "with --fresh."
        )


def _open_lmrec(path, split, device, options):
    from .models import lmrec

    about = {"fingerprint": split.items.fingerprint(), "preference": split.popularity()}
    return Opened(lmrec.load(path, **about, **options).to(device), by_history)


def _train_transact(split, folder, said, device, resume):
    from .models.actions import traits
    from .models.shelf_log import rates, shelf_log, with_rates
    from .models.transact import Config, Shelves, TransAct, taken

    told = ("items", "sizes", "match", "actions", "surfaces", "stats", "label", "taken")  # by the data
    homes = {
        "train": defaults(train.Settings) | SHELVES,
        "model": defaults(Config, without=told),
        "log": {"label": LABELS[0], "traits": None},
    }
    found = settings_for("transact", said, homes)
    settings = train.Settings(**{**SHELVES, **found["train"]})
    label = found["log"].get("label", LABELS[0])
    labels = [label, *(name for name in split.train.extra if name in LABELS and name != label)]
    all_of = shelf_log(split, labels)
    names = found["log"].get("traits", [name for name in TRAITS if name in split.items.attributes])
    about = traits(split.items.attributes, names, items=len(split.items.id), least=2)
    learn, check = (np.flatnonzero((all_of.part == part) & (all_of.log.label >= 0)) for part in (0, 1))
    log = with_rates(all_of.log, all_of.labels, learn, found["model"].get("offset", 0.0))
    config = Config(
        items=len(split.items.id),
        sizes=about.sizes,
        match=tuple(i for i, name in enumerate(names) if name in ("author", "tag")),
        actions=int(log.action.max()) + 1,
        surfaces=int(log.surface.max()) + 1,
        stats=log.stats.shape[1],
        label=label,
        taken=taken(log, learn, int(log.action.max()) + 1),
        **found["model"],
    )
    torch.manual_seed(settings.seed)
    model = TransAct(config, about.codes, rates(log, all_of.labels, learn, config.items)).to(device)
    fingerprint = split.items.fingerprint()
    task = Shelves(model, log, learn, check, batch=settings.batch, fingerprint=fingerprint, seed=settings.seed)
    return train.fit(task, settings, folder, resume=resume)


def _open_transact(path, split, device, options):
    from .models import transact

    model = transact.load(path, split.items.fingerprint()).to(device)
    return Opened(model, functools.partial(by_request, label=model.config.label or LABELS[0]))


POOL = 100  # candidates of a request for shelves, at least


def by_request(split: Split, part: str, *, label: str) -> Asked:
    """Slates of shelves for the moment each person's held-out impressions begin.

    The candidates are the items they were shown then and, up to `POOL`, others as often as train showed them: a log
    holds no request's whole pool, and what was shown alone (four items for most people) leaves nothing to decide.

    label: the column that says what was taken: the one the model was trained on
    """
    from .models.shelf_log import shelf_log

    if part not in ("test", "validation"):
        raise ValueError(
            f"`part` must be 'test' or 'validation' for a ranker of shelves, got {part!r}: it ranks what was shown at a moment."
        )
    found = shelf_log(split, [label])
    judged = found.log.label >= 0
    events = np.flatnonzero((found.part == ("validation", "test").index(part) + 1) & judged)
    row = found.log.rows()[events]
    person, first, count = np.unique(row, return_index=True, return_counts=True)
    shown = np.full((len(person), count.max(initial=1)), -1)
    shown[
        np.repeat(np.arange(len(person)), count), np.concatenate([np.arange(n) for n in count] or [[]]).astype(int)
    ] = found.log.item[events]
    learnt = found.log.item[(found.part == 0) & judged]
    pool = filled_up(shown, np.bincount(learnt[learnt >= 0], minlength=len(split.items.id)), POOL)
    requests = found.log.requests(events[first], pool=pool)
    taken = np.split(np.where(found.log.label[events] > 0, found.log.item[events], -1), first[1:])
    return Asked(
        found.people[person],
        requests.of,
        lambda rows: requests.of(rows).excluded(len(split.items.id)),
        lambda rows: taken[rows],
    )


def filled_up(shown: np.ndarray, popularity: np.ndarray, size: int, seed: int = 0) -> np.ndarray:
    """(P, W) the items of each row once each and, where these are fewer than `size`, others drawn by popularity; -1 behind.

    shown: (P, S), -1 for none.  popularity: (M,) how often each item is drawn, up to a factor

    >>> filled_up(np.array([[2, 2, -1]]), np.array([1, 0, 1, 1]), 3).tolist()[0][0]
    2
    """
    if not popularity.sum():
        return shown
    drawn = np.random.default_rng(seed).choice(len(popularity), (len(shown), 3 * size), p=popularity / popularity.sum())
    both = np.concatenate([shown, drawn], 1)
    order = np.argsort(both, axis=1, kind="stable")
    ordered = np.take_along_axis(both, order, 1)
    again = np.zeros_like(both, dtype=bool)
    np.put_along_axis(again[:, :], order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    kept = ~again & (both >= 0)
    own = kept[:, : shown.shape[1]].sum(1)
    rank = kept.cumsum(1)
    kept &= rank <= np.maximum(own, size)[:, None]
    width = int(rank[kept].max(initial=1))
    pool = np.full((len(shown), width + 1), -1)
    np.put_along_axis(pool, np.where(kept, rank - 1, width), both, 1)
    return pool[:, :width]


# How shelves are learnt, as in the paper: Adam with decay, large batches, six epochs.
SHELVES: dict[str, Any] = {
    "epochs": 6,
    "batch": 2048,
    "rate": 2e-3,
    "decay": 1e-2,
    "optimizer": "adamw",
    "warmup": 20,
    "patience": 0,
}
TRAITS = ("author", "tag", "tags", "upload_type", "music_type", "video_duration", "upload_date")

MODELS = {
    "sasrec": Model(_train_sasrec, _open_sasrec),
    "transact": Model(_train_transact, _open_transact),
    "lmrec": Model(_train_lmrec, _open_lmrec),
}
