"""One training loop for every model: what is learnt is the task's business, when and how safely is decided here.

Every step is a pure function of the weights before it and of (seed, epoch, step, rank): batches, negatives and dropout
are drawn anew from these numbers, so a run that was killed and resumed walks exactly the way of an unbroken one.
Under `torchrun`, gradients are averaged over the processes; the first one validates and writes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..files import write_atomically
from . import checkpoint

PRECISIONS = ("float32", "bf16")
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
LENGTH = ("epochs", "patience", "seconds", "every")  # how long and how often, not what: these may differ on resume


@dataclass(frozen=True)
class Settings:
    """How to train.

    epochs, batch: passes over the data, and how many examples a step sees (tasks read it; per process)
    rate, decay:   learning rate and weight decay; with "adamw", vectors (norms, biases) do not decay
    clip:          largest norm of the gradient
    patience:      stop after so many epochs without a better validation metric; 0 never stops early
    precision:     "bf16" runs the loss under autocast
    every:         steps between checkpoints inside an epoch; 0 writes at the end of epochs only
    warmup:        steps over which the learning rate rises from 0
    fade:          by what the learning rate is multiplied after every epoch; 1 leaves it
    seconds:       take no further step after so many seconds; counted anew when a run goes on
    """

    epochs: int = 100
    batch: int = 128
    rate: float = 1e-3
    decay: float = 0.0
    clip: float = 1.0
    patience: int = 10
    precision: str = "float32"
    seed: int = 0
    every: int = 0
    optimizer: str = "adam"
    warmup: int = 0
    fade: float = 1.0
    seconds: float = math.inf

    def __post_init__(self):
        for name, least in (("epochs", 0), ("batch", 1), ("patience", 0), ("every", 0), ("warmup", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
        for name in ("rate", "clip", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)!r}.")
        if not 0 < self.fade <= 1:
            raise ValueError(f"`fade` must be above 0 and at most 1, got {self.fade!r}.")
        if not self.decay >= 0:
            raise ValueError(f"`decay` must be at least 0, got {self.decay!r}.")
        for name, known in (("precision", PRECISIONS), ("optimizer", tuple(OPTIMIZERS))):
            if getattr(self, name) not in known:
                raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {getattr(self, name)!r}.")


class Task(Protocol):
    """What is to be learnt. kind, config and fingerprint go into the checkpoint, so that it explains itself.

    A task may also have `data`, a digest of what it trains on: a run is then resumed on the same data only.
    """

    kind: str
    config: dict[str, Any]
    fingerprint: str

    @property
    def model(self) -> nn.Module: ...

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[Any]:
        """The batches of an epoch: a pure function of its arguments, the same number for every rank."""
        ...

    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch. generator: on the model's device; the only source of chance besides dropout."""
        ...

    def validate(self) -> dict[str, float]:
        """Metrics, larger is better; the first decides when to stop. May be empty: then nothing stops early."""
        ...


class Fitted(NamedTuple):
    """How training went.

    best:   metrics of the best epoch, whose weights the model has now. epoch: which it is, -1 where time was up before
            the end of the first: then these are the metrics and weights of what there was of it
    epochs: how many are whole.  why: what ended it
    """

    best: dict[str, float]
    epoch: int
    epochs: int
    steps: int
    why: str
    folder: Path


class _Run(NamedTuple):
    """Where a run stands; all of it is in last.pt."""

    epoch: int = 0
    step: int = 0  # inside the epoch
    steps: int = 0  # in all
    total: float = 0.0  # of the losses of this epoch
    best: int = -1  # the best epoch, -1 before the first
    history: tuple[dict[str, Any], ...] = ()  # one dict an epoch: what metrics.jsonl holds


def fit(task: Task, settings: Settings, folder: str | Path, *, resume: bool = True, progress: bool = True) -> Fitted:
    """Train until the epochs are over or validation stops improving; the model ends with its best weights.

    Writes last.pt (to go on from), best.pt and metrics.jsonl (one line an epoch) into `folder`. With `resume` a run
    found there goes on where it stood; a run of another config, catalog or settings is refused.
    progress: a bar on stderr, where that is a terminal and `rich` is installed
    """
    folder = Path(folder)
    with _processes(task.model) as (rank, world):
        optimizer = _optimizer(task.model, settings)
        found = _told(resume and (folder / "last.pt").exists(), task.model, world)  # one answer, or they part ways
        run = _resumed(task, settings, optimizer, folder, world) if found else None
        begun = time.monotonic()
        if run is None:
            run = _Run()
            _share_weights(task.model, world)
            if rank == 0:
                _make(folder)
                _save(task, settings, optimizer, folder, world, run)  # a folder that refuses, refuses now
        if rank == 0:
            _write_metrics(folder, run)
        with _bar(progress and rank == 0) as bar:
            while not (why := _over(task.model, settings, run, begun, world)):
                run = _epoch(task, settings, optimizer, folder, rank, world, run, begun, bar)
        if run.best >= 0:
            best = run.history[run.best]["metrics"]
            task.model.load_state_dict(checkpoint.load(folder / "best.pt", kind=task.kind).weights)
        else:  # time was up inside the first epoch: what it has learnt is better than nothing, until the epoch is whole
            best = _validated(task, rank, world) if run.step else {}
            if run.step and rank == 0:
                _save_best(task, folder, run.epoch, best)
        task.model.eval()
    return Fitted(best, run.best, run.epoch, run.steps, why, folder)


def device(name: str | None = None) -> torch.device:
    """Where to train: as named, else this process's GPU, else the CPU."""
    if name is not None:
        try:
            place = torch.device(name)
            torch.empty(0, device=place)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(f"device '{name}' cannot be used here: {reason}. Say cpu, or leave it out.") from None
        return place
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    )


# ---- an epoch --------------------------------------------------------------------------------------------------


def _epoch(task, settings, optimizer, folder, rank, world, run: _Run, begun: float, bar) -> _Run:
    """The run after the rest of this epoch, validated and written down; or inside it, if time is up. begun: when `fit` was"""
    since = time.monotonic()
    place = next(task.model.parameters()).device
    generator = torch.Generator(place)
    total = torch.tensor(run.total, dtype=torch.float64, device=place)
    task.model.train()
    bar.begin(f"epoch {run.epoch}", run.step)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        for batch in itertools.islice(task.batches(run.epoch, rank, world), run.step, None):
            key = _key(settings.seed, run.epoch, run.step, rank)
            torch.manual_seed(key)  # dropout knows no generator
            with torch.autocast(place.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                loss = task.loss(batch, generator.manual_seed(key))
            total += _step(task.model, optimizer, settings, loss, run.epoch, run.steps, world)
            run = run._replace(step=run.step + 1, steps=run.steps + 1)
            bar.advance()
            late = _late(task.model, settings, begun, world)
            if late or (settings.every and run.step % settings.every == 0):
                run = run._replace(total=_finite(total, run, task.model))
                if rank == 0:
                    _save(task, settings, optimizer, folder, world, run)
            if late:
                return run
    if not run.step:
        raise ValueError(f"`task.batches` gave no batch in epoch {run.epoch}: there is nothing to train on.")
    run = run._replace(total=_finite(total, run, task.model))
    return _finish(task, settings, optimizer, folder, rank, world, run, time.monotonic() - since)


def _step(model, optimizer, settings, loss: Tensor, epoch: int, steps: int, world: int) -> Tensor:
    """The loss, after one step down its gradient. Nothing here waits for a GPU."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if world > 1:
        _average([p for p in model.parameters() if p.requires_grad], world)
    nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    for group in optimizer.param_groups:
        group["lr"] = settings.rate * settings.fade**epoch * min(1.0, (steps + 1) / max(settings.warmup, 1))
    optimizer.step()
    return loss.detach().double()


def _finish(task, settings, optimizer, folder, rank, world, run: _Run, seconds: float) -> _Run:
    """The run at the start of the next epoch. best.pt goes first: dying in between only repeats the validation."""
    metrics = _validated(task, rank, world)
    line = {"epoch": run.epoch, "steps": run.steps, "loss": run.total / run.step, "metrics": metrics}
    history = (*run.history, {**line, "seconds": round(seconds, 3)})
    first = _first(metrics) if metrics else 0.0
    better = run.best < 0 or not metrics or first > _first(run.history[run.best]["metrics"])
    run = run._replace(history=history, best=run.epoch if better else run.best)
    run = run._replace(epoch=run.epoch + 1, step=0, total=0.0)
    if rank == 0:
        if better:
            _save_best(task, folder, run.best, metrics)
        _save(task, settings, optimizer, folder, world, run)
        _write_metrics(folder, run)
    if world > 1:
        dist.barrier()  # best.pt is there before anyone reads it
    return run


def _validated(task, rank: int, world: int) -> dict[str, float]:
    """The task's metrics, by the first process's weights; the others are told."""
    metrics: dict[str, float] = {}
    if rank == 0:
        task.model.eval()
        with torch.no_grad():
            metrics = {name: float(value) for name, value in task.validate().items()}
    return _told(metrics, task.model, world)


def _over(model: nn.Module, settings: Settings, run: _Run, begun: float, world: int) -> str:
    """Why the run ends here, or ""."""
    if run.epoch >= settings.epochs:
        return "epochs"
    if settings.patience and run.best >= 0 and run.epoch - 1 - run.best >= settings.patience:
        return "patience"
    return "seconds" if _late(model, settings, begun, world) else ""


def _late(model: nn.Module, settings: Settings, begun: float, world: int) -> bool:
    """Whether time is up, by the first process's clock: all of them stop after the same step."""
    return settings.seconds < math.inf and _told(time.monotonic() - begun >= settings.seconds, model, world)


def _finite(total: Tensor, run: _Run, model: nn.Module) -> float:
    """The loss so far, before anything is kept. The weights are looked at too: no loss has seen the last step's yet."""
    value = float(total)
    sound = all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad)
    if not math.isfinite(value) or not sound:
        what = "The weights are no longer finite" if math.isfinite(value) else f"The loss became {value}"
        raise ValueError(
            f"{what} in epoch {run.epoch}, by step {run.step}: training has diverged. Lower `rate`, "
            "or use a `warmup`. The last checkpoint is from before."
        )
    return value


def _first(metrics: dict[str, float]) -> float:
    name, value = next(iter(metrics.items()))
    if math.isnan(value):
        raise ValueError(f"The validation metric '{name}' is not a number; it cannot say when to stop.")
    return value


def _key(*numbers: int) -> int:
    """A seed of its own for every combination of numbers (each below 2^32)."""
    key = 0
    for number in numbers:
        key = ((key ^ number) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        key ^= key >> 31
    return key >> 1  # torch takes int64


# ---- checkpoints -----------------------------------------------------------------------------------------------


def _save(task, settings, optimizer, folder, world, run: _Run) -> None:
    about = {"kind": task.kind, "config": task.config, "fingerprint": task.fingerprint}
    state = {**run._asdict(), "optimizer": optimizer.state_dict(), "settings": _identity(task, settings, world)}
    checkpoint.save(folder / "last.pt", **about, weights=task.model.state_dict(), **state)


def _save_best(task, folder, epoch: int, metrics: dict[str, float]) -> None:
    about = {"kind": task.kind, "config": task.config, "fingerprint": task.fingerprint}
    checkpoint.save(folder / "best.pt", **about, weights=task.model.state_dict(), epoch=epoch, metrics=metrics)


def _resumed(task, settings, optimizer, folder, world) -> _Run:
    """The run found in `folder`; its weights and optimizer state are put in place."""
    held = checkpoint.load(folder / "last.pt", kind=task.kind, fingerprint=task.fingerprint)
    now = {**task.config, **_identity(task, settings, world)}
    then = {**held.config, **held.more["settings"]}
    other = [k for k in dict.fromkeys([*now, *then]) if now.get(k) != then.get(k)]
    if other:
        changes = ", ".join(f"{k} {then.get(k)!r} then, {now.get(k)!r} now" for k in other)
        raise ValueError(
            f"The run in '{folder}' cannot go on with other settings: {changes}. "
            "Use the settings it began with, another folder, or start afresh: --fresh, in Python resume=False."
        )
    task.model.load_state_dict(held.weights)
    optimizer.load_state_dict(held.more["optimizer"])
    return _Run(**{name: held.more[name] for name in _Run._fields})


def _identity(task, settings: Settings, world: int) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    same = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in LENGTH}
    return {**same, "processes": world, "data": getattr(task, "data", "")}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"Folder '{folder}' cannot be made: {error.strerror}. Name one that can be written to"
        ) from error


def _write_metrics(folder: Path, run: _Run) -> None:
    """Whole, from the run's own memory, so that a resumed run leaves the lines of an unbroken one."""
    write_atomically(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in run.history))


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    learnt = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in learnt if p.dim() > 1], [p for p in learnt if p.dim() <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    if settings.optimizer == "adam":
        groups = [{"params": learnt}]
    return OPTIMIZERS[settings.optimizer](
        groups, lr=settings.rate, weight_decay=settings.decay, fused=learnt[0].is_cuda or None
    )


# ---- several processes -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _processes(model: nn.Module) -> Iterator[tuple[int, int]]:
    """This process's number and how many there are; joins those that `torchrun` started."""
    joined = False
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if next(model.parameters()).is_cuda else "gloo")
        joined = True
    try:
        yield (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    finally:
        if joined:
            dist.destroy_process_group()


def _share_weights(model: nn.Module, world: int) -> None:
    """Everyone begins with the weights of the first process."""
    if world > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def _average(parameters: list[nn.Parameter], world: int) -> None:
    """Gradients become their mean over the processes: one all-reduce of all of them."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1).float() for g in grads])
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, (flat / world).split([g.numel() for g in grads]), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)


def _told(thing: Any, model: nn.Module, world: int) -> Any:
    """What the first process says."""
    if world == 1:
        return thing
    box = [thing]
    dist.broadcast_object_list(box, 0, device=next(model.parameters()).device)
    return box[0]


# ---- progress --------------------------------------------------------------------------------------------------


class _Bar:
    """A bar that counts steps, or nothing at all."""

    def __init__(self, shown=None):
        self.shown, self.line = shown, None

    def begin(self, label: str, done: int) -> None:
        if self.shown is not None:
            if self.line is not None:
                self.shown.remove_task(self.line)
            self.line = self.shown.add_task(label, total=None, completed=done)

    def advance(self) -> None:
        if self.shown is not None:
            self.shown.advance(self.line)


@contextlib.contextmanager
def _bar(wanted: bool) -> Iterator[_Bar]:
    if not (wanted and sys.stderr.isatty()):
        yield _Bar()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:  # the machine that trains may have torch and numpy only
        yield _Bar()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}, step {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _Bar(shown)
