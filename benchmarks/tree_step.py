"""What a step along a tree of ids costs on the CPU: mask, price and next state, for all rows at once.

160 rows, 1M ids of 3 tokens, V = 2048, one thread; and what it takes to build, save and open such a menu. Variants take turns in one process (order drawn anew each round); each
time is the median of all rounds, beside its quartiles.

    fill          writing -inf to a (R, V) matrix in place, alone: what any dense mask costs at least
    csr           a mask alone, and nothing else: the children of each row's node, searched for and written in torch
    transformers  PrefixConstrainedLogitsProcessor with a dictionary of all prefixes
    mask          ours with nothing promised: legal tokens, log p over the children, used items out
    one floor     ours with a floor on a 0/1 value: the same, and a price and a guard on every child
    three         ours with two floors and a cap on three values, guarded together
    in place      `one floor` written over the logits
    children      `one floor` without a dense matrix: words, log p, payments, as our own loop has it
    advance       the next state from the tokens written

Levels are 0 (first token of an item: 2048 children, 1M items below), 1, and 2 (last token), after two items each. Before
anything is timed, numba is held against plain torch, and `mask` against `transformers`.

    python benchmarks/tree_step.py [--rows 160] [--items 1000000] [--rounds 200] [--out FILE]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import PrefixConstrainedLogitsProcessor

import record
from spdd.catalog import Catalog
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan

V, L, SLOTS = 2048, 3, 10
PROMISES = {
    "mask": [],
    "one floor": [{"name": "new", "at_least": 3}],
    "three": [{"name": "new", "at_least": 3}, {"name": "local", "at_least": 4}, {"name": "partner", "at_most": 2}],
}


def main():
    options = record.parser(__doc__)
    options.add_argument("--rows", type=int, default=160)
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=200)
    args = options.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    ids = rng.integers(0, V, (args.items, L))
    values = {name: rng.random(args.items) < share for name, share in (("new", 0.1), ("local", 0.3), ("partner", 0.2))}
    built: dict[str, float] = {}
    catalog = timed("catalog", built, lambda: Catalog.of(ids, sizes=[V] * L))
    menu = timed("menu", built, lambda: Menu.of(catalog, words=[np.arange(V)] * L, columns=values))
    prices = {"new": values["new"], "margin": rng.random(args.items), "price": rng.random(args.items)}
    timed("real_values", built, lambda: menu.with_columns(prices))
    with tempfile.TemporaryDirectory() as folder:
        timed("save", built, lambda: menu.save(Path(folder) / "menu"))
        menu = timed("load", built, lambda: Menu.load(Path(folder) / "menu"))
    print(f"{args.items:,} ids, seconds (of the processor): " + ", ".join(
        f"{name} {built[f'{name}_s']:.3f} ({built[f'{name}_cpu_s']:.3f})"
        for name in ("catalog", "menu", "real_values", "save", "load")
    ))  # fmt: skip
    prefixes = trie(ids)
    results = [line for level in range(L) for line in compare(level, menu, catalog, prefixes, rng, args)]
    record.table([readable(line) for line in results])
    record.write(record.origin("tree_step", args), [{**built, **line} for line in results], args.out)


def timed(name: str, seconds: dict[str, float], make):
    """What `make` makes; `seconds` has the time on the clock, and that of the processor, which others do not lengthen."""
    began, worked = time.perf_counter(), time.process_time()
    made = make()
    seconds[f"{name}_s"], seconds[f"{name}_cpu_s"] = time.perf_counter() - began, time.process_time() - worked
    return made


def compare(level: int, menu: Menu, catalog: Catalog, prefixes: dict, rng, args) -> list[dict]:
    plans = {name: Plan.of(menu, {"slots": SLOTS, "objectives": wanted}) for name, wanted in PROMISES.items()}
    spelled = menu.spell(rng.choice(len(menu), (args.rows, 3), replace=False).ravel()).reshape(args.rows, -1)
    written = torch.from_numpy(spelled[:, : 2 * L + level])
    rows = {name: at.advance(menu, plan.begin(args.rows), written) for name, plan in plans.items()}
    logits = torch.from_numpy(rng.normal(size=(args.rows, V)).astype(np.float32))
    theirs = PrefixConstrainedLogitsProcessor(lambda _, sent: prefixes[tuple(sent[2 * L :].tolist())], 1)
    nodes = torch.from_numpy(rows["mask"].stand.node) - menu.about["start"][level]
    here = rows["one floor"]
    check(menu, rows, logits, theirs, written)
    token = at.priced(menu, here, logits).argmax(1).numpy()
    scratch = logits.clone()
    variants = {
        "fill": lambda: scratch.fill_(-torch.inf),
        "csr": lambda: csr(catalog, level, nodes, logits),
        "transformers": lambda: theirs(written, logits),
        **{name: lambda r=r: at.priced(menu, r, logits) for name, r in rows.items()},
        "in place": lambda: at.priced(menu, here, scratch, in_place=True),
        "children": lambda: at.branches(menu, here, logits),
        "advance": lambda: at.advance(menu, here, token),
    }
    seconds = {name: [] for name in variants}
    order = np.random.default_rng(args.seed)
    for _ in range(args.rounds):
        for name in order.permutation(list(variants)):
            scratch.copy_(logits)
            began = time.perf_counter()
            variants[name]()
            seconds[name].append(time.perf_counter() - began)
    return [
        {"level": level, "variant": name, "ms": 1e3 * np.median(x), "quartiles_ms": [1e3 * q for q in np.quantile(x, [0.25, 0.75])],
         "least_ms": 1e3 * min(x)}
        for name, x in seconds.items()
    ]  # fmt: skip


def check(menu, rows, logits, theirs, written) -> None:
    """Numba as plain torch; legal where transformers says so, but for ids that are used up."""
    for r in rows.values():
        some = at.take(r, np.arange(4))
        plain = at.priced(menu, at.to(some, "cpu"), logits[:4])
        torch.testing.assert_close(at.priced(menu, some, logits[:4]), plain, rtol=0, atol=1e-5)
    ours = torch.isfinite(at.priced(menu, rows["mask"], logits))
    assert (ours != torch.isfinite(theirs(written, logits))).sum() <= 2 * len(written)


def csr(catalog: Catalog, level: int, nodes, logits):
    """A mask alone: -inf but where a node has a child."""
    child, token = catalog.branches(level, nodes[:, None])
    out = torch.full((len(logits), V + 1), -torch.inf)
    word = token[:, 0].masked_fill(child[:, 0] < 0, V)
    return out.scatter_(1, word, logits.gather(1, word.clamp_max(V - 1)))[:, :V]


def trie(ids) -> dict:
    """The tokens that may follow each prefix, as lists in a dictionary."""
    follow = {(): np.unique(ids[:, 0]).tolist()}
    for length in range(1, L):
        pairs = np.unique(ids[:, : length + 1], axis=0)
        cuts = np.flatnonzero((pairs[1:, :-1] != pairs[:-1, :-1]).any(1)) + 1
        for part in np.split(pairs, cuts):
            follow[tuple(part[0, :-1].tolist())] = part[:, -1].tolist()
    return follow


def readable(line: dict) -> dict:
    low, high = line["quartiles_ms"]
    return {
        "level": f"{line['level']} {line['variant']}",
        "ms": f"{line['ms']:.3f}",
        "quartiles": f"{low:.3f} to {high:.3f}",
        "least": f"{line['least_ms']:.3f}",
    }


if __name__ == "__main__":
    main()
