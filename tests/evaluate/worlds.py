"""A small domain for sweeps: users whose later items follow the scores, and a slow twin of it for a process to be killed in."""

import functools
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import spdd
from spdd.evaluate import grid
from spdd.evaluate.sweep import Bench, Domain, Point, sweep

USERS, ITEMS, SLOTS = 40, 80, 5


def scores(seed=0):
    """(U, M), what was consumed later (U, 6), and who has value (M,). seed: another number, other users"""
    random = np.random.default_rng(0)
    liking = random.standard_normal((USERS, ITEMS))
    later = np.argsort(-(liking + random.gumbel(size=liking.shape)), 1)[:, :6]
    value = (random.random(ITEMS) < 0.2).astype(float)
    if seed:
        random = np.random.default_rng(seed)
        liking = random.standard_normal((USERS, ITEMS))
        later = np.argsort(-(liking + random.gumbel(size=liking.shape)), 1)[:, :6]
    return torch.from_numpy(liking), later, value


def bench(floor=2.0, seed=0):
    liking, later, value = scores(seed)
    # What was placed drags the scores a little, so that order matters.
    drag = torch.randn(ITEMS, ITEMS, generator=torch.Generator().manual_seed(1)).double() / 5

    class Model:
        def start(self, rows):
            return liking[rows]

        def logits(self, state):
            return state

        def advance(self, state, items):
            return state + drag[items]

    def policy(point):
        decoder = grid.decoder_of(point, value, SLOTS)
        if isinstance(decoder, spdd.BanditTS | spdd.BanditUCB):
            slate = decoder.generate(Model(), slice(0, 30))
            decoder.learn(slate, np.linspace(0, 1, 30))
        return lambda rows: decoder.generate(Model(), rows)

    return Bench(Domain("small", USERS, lambda rows: rows, later, value, floor, f"d{1 + seed}", SLOTS), policy)


def slow(log, pause):
    """The same, which writes a line for each slate batch and takes its time."""
    made = bench()

    def policy(point):
        plain = made.policy(point)

        def slowly(rows):
            with open(log, "a") as file:
                file.write(f"{point.curve} {dict(point.knob)}\n")
            time.sleep(pause)
            return plain(rows)

        return slowly

    return made._replace(policy=policy)


def few():
    """Twelve points."""
    return [Point("WA", {"price": p}, "wa", {"weight": p / (1 + p)}) for p in np.arange(1, 13).tolist()]


if __name__ == "__main__":  # FOLDER LOG WORKERS: a sweep to be killed
    folder, log, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    Path(f"{log}.pid").write_text(str(os.getpid()))
    sweep(functools.partial(slow, log, 0.15), few(), folder, workers=workers)
