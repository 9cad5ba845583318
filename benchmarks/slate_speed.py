"""What the decoder adds to a whole slate: a SASRec asked again after every choice, decoded in every way there is.

`bare` is what cannot be left out: the model's step, all scores, their arg-max; no objective, nothing excluded. Beside it the default
`SPDD` with one 0/1 floor and what each row has seen excluded: with all scores written, with none written, and on a GPU replayed
as one CUDA graph. Ways take turns in one process, in an order drawn anew each round, each run once before; `x bare` is the
median over rounds of the ratio inside a round. `alike` is the share of slots in which a way chose what float32's written scores chose.
On a GPU also: how often the host waited between the first slot and the last (profiler), memory beyond model and values, and
one item step replayed alone beside one read of the table.

    python benchmarks/slate_speed.py [--items 100000] [--rows 32] [--slots 10] [--threads 1] [--rounds 5] [--out FILE]
    python benchmarks/slate_speed.py --items 1000000 42000000 --rows 64 --slots 30 --dtype bfloat16    on a GPU
"""

from __future__ import annotations

import time

import numpy as np
import torch

import record
import spdd
from spdd.decode import products
from spdd.decode.captured import Captured, Recorded, taken_apart
from spdd.kernels import Barred, Product, longest, prepare
from spdd.kernels.priced import priced_unsettled
from spdd.models.sasrec import Config, SASRec

SEEN, WANTED = 100, 0.1
FITS = 1 << 33  # bytes of scores that are still written


class Written:
    """The model without its `hidden` and `table`."""

    def __init__(self, model):
        self.start, self.logits, self.advance = model.start, model.logits, model.advance


def main():
    options = record.parser(__doc__)
    options.add_argument("--items", type=int, nargs="+", default=[100_000])
    options.add_argument("--rows", type=int, nargs="+", default=[32])
    options.add_argument("--slots", type=int, default=10)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    options.add_argument("--scales", nargs="+", choices=["logit", "probability"], default=["logit", "probability"])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    products.WORTH = 0
    device, results = ("cuda" if torch.cuda.is_available() else "cpu"), []
    for items in args.items:
        with torch.device(device), torch.random.fork_rng():
            torch.manual_seed(args.seed)
            config = Config(width=args.width, heads=args.width // 16, history=SEEN, slots=args.slots)
            model = SASRec(items, config).to(getattr(torch, args.dtype)).eval()
            value = torch.rand(items) < WANTED
            for rows in args.rows:
                histories = torch.randint(0, items, (rows, SEEN))
                for scale in args.scales:
                    results += slates(model, value, histories, scale, args)
                if device == "cuda":
                    results += [step(model, value, rows, scale, args) for scale in args.scales]
    record.table([readable(line) for line in results])
    record.write(record.origin("slate_speed", args), results, args.out)


def slates(model, value, histories, scale, args) -> list[dict]:
    """One line for each way to a slate."""
    rows, items = len(histories), model.items
    goal = [spdd.Objective("wanted", value, at_least=3)]
    # On the probability scale a chance is about one in M: the price is set to match.
    start = "auto" if scale == "logit" else 1 / items
    made = spdd.SPDD(goal, args.slots, scale=scale, start=start)
    plain = spdd.Greedy(slots=args.slots, scale=scale)
    fits, cuda = 4 * rows * items <= FITS, histories.is_cuda
    ways = {}
    if fits:
        ways["bare"] = lambda: bare(model, histories, args.slots)
        ways["written"] = lambda: made.generate(Written(model), histories, exclude="seen").items
    ways["none written"] = lambda: made.generate(model, histories, exclude="seen").items
    ways["none written, plain"] = lambda: plain.generate(model, histories, exclude="seen").items
    if cuda:
        fast = Captured(model)
        ways["replayed"] = lambda: made.generate(fast, histories, exclude="seen").items
        ways["replayed, plain"] = lambda: plain.generate(fast, histories, exclude="seen").items
    first = {name: way() for name, way in ways.items()}
    taken = timed(ways, args.rounds, args.seed, cuda)
    lines = []
    for name, seconds in taken.items():
        ours = name not in ("bare", "written") and "plain" not in name
        lines.append({
            "what": "slate", "rows": rows, "items": items, "slots": args.slots, "scale": scale, "way": name,
            "ms": 1e3 * float(np.median(seconds)), "least_ms": 1e3 * float(seconds.min()),
            "over_bare": ratio(seconds, taken.get("bare")), "over_written": ratio(seconds, taken.get("written")),
            "alike": float((first[name] == first["written"]).float().mean()) if fits and ours else None,
            "waits": waits(made, fast if name == "replayed" else model, histories) if cuda and ours else None,
            "room_mb": room(ways[name]) if cuda else None,
        })  # fmt: skip
    return lines


def bare(model, histories, slots) -> torch.Tensor:
    """(R, K) the model's own favourites, seen or used or not."""
    with torch.no_grad():
        state, chosen = model.start(histories), []
        for slot in range(slots):
            chosen.append(model.logits(state).argmax(1))
            if slot + 1 < slots:
                state = model.advance(state, chosen[-1])
    return torch.stack(chosen, 1)


def step(model, value, rows, scale, args) -> dict:
    """One priced arg-max, exclusions and all, replayed as a CUDA graph, beside one read of the table."""
    table = model.table.detach()
    items, ready = len(table), prepare(value.float()[None])
    scores = Product(torch.randn(rows, args.width, dtype=table.dtype), table)
    scores = scores._replace(longest=longest(scores))
    price = torch.rand(rows, 1) / (1 if scale == "logit" else items)
    barred = Barred(torch.randint(0, items, (rows, SEEN)), torch.randint(0, items, (rows, args.slots)))

    def choose(tensors):
        hidden, price, seen, used = tensors
        found, sure = priced_unsettled(
            scores._replace(hidden=hidden), ready, price, 1, scale=scale, barred=Barred(seen, used)
        )
        return found.items, sure

    held = [scores.hidden, price, barred.seen, barred.used]
    recorded = Recorded(choose, held, taken_apart(held)[1], None)
    whole = torch.int16 if table.element_size() == 2 else torch.int32
    taken = timed(
        {"replayed": lambda: recorded(held), "read": lambda: table.view(whole).amax()}, args.rounds, args.seed, True, 20
    )
    return {
        "what": "step", "rows": rows, "items": items, "scale": scale, "way": "replayed",
        "ms": 1e3 * float(np.median(taken["replayed"])), "least_ms": 1e3 * float(taken["replayed"].min()),
        "over_read": ratio(taken["replayed"], taken["read"]), "proven": float(recorded(held)[1].float().mean()),
    }  # fmt: skip


def timed(ways, rounds, seed, cuda, times=1) -> dict[str, np.ndarray]:
    """Seconds each way took in each round; `times` in a row where one is too short for the clock."""
    seconds = {name: [] for name in ways}
    order = np.random.default_rng(seed)
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    # One thread on a CPU is timed by what it was given of the processor: whatever else runs takes no part.
    clock = time.perf_counter if cuda or torch.get_num_threads() > 1 else time.thread_time
    for way in ways.values():
        way()
    for _ in record.progress(range(rounds), "rounds"):
        for name in order.permutation(list(ways)):
            wait()
            began = clock()
            for _ in range(times):
                ways[name]()
            wait()
            seconds[name].append((clock() - began) / times)
    return {name: np.array(x) for name, x in seconds.items()}


def ratio(one, other) -> float | None:
    return None if other is None else float(np.median(one / other))


def waits(made, model, histories) -> int:
    """How often the host waited for the device between the first slot and the last, as the profiler saw it."""
    from torch.profiler import ProfilerActivity, profile, record_function

    walk = getattr(model, "_spdd_walk", products.walk)

    class Watched:
        def __getattr__(self, name):
            return getattr(model, name)

        def _spdd_walk(self, *given):
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                with record_function("all slots"):
                    went = walk(*given)
                torch.cuda.synchronize()
            Watched.events = seen.events()
            return went

    made.generate(Watched(), histories, exclude="seen")
    loop = next(e.time_range for e in Watched.events if e.name == "all slots")
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
    return sum(e.name in names and loop.start <= e.time_range.start <= loop.end for e in Watched.events)


def room(way) -> float:
    """MB held at most while a slate is made, beyond what was there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    way()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def readable(line: dict) -> dict:
    def number(key, form):
        return "" if line.get(key) is None else format(line[key], form)

    return {
        "way": f"{line['what']}: {line['way']}, {line['scale']}",
        "shape": f"{line['rows']} x {line['items']:,}",
        "ms": number("ms", ".2f"),
        "least": number("least_ms", ".2f"),
        "x bare": number("over_bare", ".2f"),
        "x written": number("over_written", ".2f"),
        "x read": number("over_read", ".2f"),
        "alike": number("alike", ".3f"),
        "waits": number("waits", "d"),
        "MB": number("room_mb", ".0f"),
    }


if __name__ == "__main__":
    main()
