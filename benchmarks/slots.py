"""What a slot costs, and whether state is exact: trained models decoded from their state, and read anew after every choice.

The same users, the same decoder (plain), the same loop: beside the model itself stands one that forgets everything and
starts again from the history and all that was chosen so far. Told are the slates both agree on, the largest difference of
the scores of what was chosen, and milliseconds a slot takes, all that the decoder does included (medians of some runs). On a
CPU these are of processor time, of one thread: whatever else the machine does takes no part.

    python benchmarks/slots.py --run FOLDER --data PREPARED.npz --rows 16 --out results.jsonl
"""

from __future__ import annotations

import copy
import json
import pathlib
import time

import numpy as np
import torch

import record
import spdd
from spdd.data import prepared
from spdd.models.actions import Requests
from spdd.trained import open_run


class Timed:
    """A model, and when it was told of each choice."""

    def __init__(self, model, clock):
        self.model, self.clock, self.at = model, clock, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def advance(self, state, token):
        self.at.append(self.clock())
        return self.model.advance(state, token)


class Forgetful:
    """The model without its state: after every choice it reads the history and all choices again."""

    def __init__(self, model):
        self.model = model
        if hasattr(model, "propose"):  # its history is cut once, before the first choice, and not for every choice made
            self.most, self.model = model.history, copy.copy(model)
            self.model.history = 1 << 30
            self.propose = lambda state, *given, **more: self.model.propose(state[1], *given, **more)

    def start(self, histories):
        if hasattr(self, "propose"):
            histories = [row[row >= 0][-self.most :] for row in map(np.asarray, histories)]
        return self.read(histories)

    def read(self, histories):
        return histories, self.model.start(histories)

    def logits(self, state):
        return self.model.logits(state[1])

    def hidden(self, state):
        return self.model.hidden(state[1])

    def advance(self, state, token):
        return self.read(self.longer(state[0], token))

    def longer(self, histories, token):
        if isinstance(histories, Requests):
            return placed(histories, token[:, None], self.model.config.actions)
        return [np.append(row, one) for row, one in zip(histories, token.tolist(), strict=True)]

    def __getattr__(self, name):
        return getattr(self.model, name)


def placed(requests: Requests, shelves: torch.Tensor, kind: int) -> Requests:
    """Requests whose actions end with these shelves (R, k), placed just now."""
    one = torch.ones_like(shelves)
    more = (shelves, kind * one, requests.now[:, None] * one, requests.surface[:, None] * one)
    past = [torch.cat(pair, 1) for pair in zip(requests[:4], more, strict=True)]
    return requests._replace(**dict(zip(requests._fields, past, strict=False)))


def decoded(model, histories, slots: int, clock):
    """The slate, and (slots - 2,) seconds from choice to choice: what slot 2, 3, ... took. Nothing is told of the last."""
    timed = Timed(model, clock)
    exclude = histories.excluded(model.config.items) if isinstance(histories, Requests) else "seen"
    slate = spdd.Greedy(slots=slots).generate(timed, histories, exclude=exclude)
    return slate.numpy(), np.diff(timed.at)


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--run", type=pathlib.Path, required=True, help="a run folder of `spdd train`")
    options.add_argument("--data", type=pathlib.Path, required=True, help="the prepared file it was trained on")
    options.add_argument("--rows", type=int, default=16)
    options.add_argument("--slots", type=int, default=30)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument(
        "--pool", action="store_true", help="shelves out of each request's own pool, not out of all items"
    )
    options.add_argument("--device", default="cpu")
    args = options.parse_args()
    clock = time.perf_counter
    if args.device == "cpu":
        torch.set_num_threads(1)
        clock = time.thread_time
    about = record.origin("slots", args) | {"settings": json.loads(json.dumps(vars(args), default=lambda x: x.name))}
    split = prepared.load(args.data)
    opened = open_run(args.run, split, device=args.device)
    asked = opened.asked(split, "test")
    histories = asked.histories(slice(0, args.rows))
    if isinstance(histories, Requests) and not args.pool:
        histories = histories._replace(pool=None)  # all items may stand in the slate
    ways = {"state": opened.model, "anew": Forgetful(opened.model)}
    took, slates = {name: [] for name in ways}, {}
    for _ in range(args.repeats + 1):  # the first one warms up
        for name, model in ways.items():
            slates[name], seconds = decoded(model, histories, args.slots, clock)
            took[name].append(1000 * seconds)
    medians = {name: np.median(runs[1:], 0) for name, runs in took.items()}
    one, other = slates.values()
    same = float((one.items == other.items).all(1).mean())
    difference = float(np.abs(one.relevance - other.relevance).max())  # nan comes through
    shown = sorted({0, 3, 8, 18, args.slots - 3} & set(range(args.slots - 2)))
    record.table([{"slot": k + 2, **{f"{name} ms": f"{x[k]:.2f}" for name, x in medians.items()}} for k in shown])
    print(f"{args.rows} rows: {same:.0%} of slates alike, scores at most {difference:.1e} apart")
    result = {
        "model": type(opened.model).__name__, "items": len(split.items.id), "rows": args.rows, "alike": same,
        "difference": difference, **{f"{name} ms": x.tolist() for name, x in medians.items()},
    }  # fmt: skip
    record.write(about, [result], args.out)


if __name__ == "__main__":
    main()
