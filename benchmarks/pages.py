"""The tables of README.md and of some pages in docs/, made from the result files, never by hand.

A table stands between `<!-- results: NAME -->` and `<!-- end -->`; NAME is one of TABLES below.

    python benchmarks/pages.py            # writes them
    python benchmarks/pages.py --check    # exits 1 where a page is not what the results say
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cpu-2core"
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("speed", "engines", "rerank")))
PLACE = re.compile(r"(<!-- results: ([a-z_-]+) -->\n).*?(<!-- end -->)", re.S)
Line = dict[str, Any]


def main() -> None:
    for page in PAGES:
        old = page.read_text("utf-8")
        new = filled(old)
        if "--check" in sys.argv:
            if new != old:
                sys.exit(f"{page.relative_to(ROOT)} is not what the results say: python benchmarks/pages.py")
        elif new != old:
            page.write_text(new, "utf-8")
            print(page.relative_to(ROOT))


def filled(text: str, lines: Callable[[str], list[Line]] | None = None) -> str:
    """The text with every table as the results have it. lines: what a result file holds, by its name"""
    read = lines or _lines
    return PLACE.sub(lambda found: f"{found[1]}{TABLES[found[2]](read)}\n{found[3]}", text)


def given(read) -> str:
    return _step(read, "logits", "one read of the scores")


def table(read) -> str:
    return _step(read, "table", "the product alone")


def _step(read, source: str, floor: str) -> str:
    lines = [line for line in read("kernels") if line["variant"].startswith(f"{source}: ")]
    rows = [["", "ms (middle half)", "least", f"x {floor}", "processor time, ms", "x floor", "x ours"]]
    for line in sorted(lines, key=lambda line: line["cpu_ms"]):
        low, high = line["quartiles_ms"]
        rows.append(
            [
                line["variant"].partition(": ")[2],
                f"{line['ms']:.1f} ({low:.1f} to {high:.1f})",
                f"{line['least_ms']:.1f}",
                f"{line['over_floor']:.2f}",
                f"{line['cpu_ms']:.1f}",
                f"{line['cpu_over_floor']:.2f}",
                f"{line['cpu_over_ours']:.1f}",
            ]
        )
    return f"{_where(lines[0])}\n\n{_markdown(rows)}"


def first(read) -> str:
    took = {line["variant"]: line["seconds"] for line in read("kernels") if "seconds" in line}
    return (
        f"The first choice of a process costs {took['first call, nothing compiled']:.1f} s more where nothing is compiled yet, and "
        f"{took['first call, compiled before']:.1f} s where numba finds what it compiled before beside the package."
    )


def lost(read) -> str:
    """Where something else is faster than ours, by the results at hand."""
    found = []
    for line in read("kernels"):
        if line.get("peer") and line["cpu_over_ours"] < 1:
            found.append(f"- {line['variant']}: {line['cpu_over_ours']:.2f} times our processor time.")
    for line in read("rerank_speed"):
        if line["variant"] == "rerank" and line["over_topk"] > 1:
            found.append(
                f"- Scores that stand still, {line['items']:,} items: `torch.topk` alone takes 1 / {line['over_topk']:.2f} of the time of "
                "`SPDD.rerank` (it has no objective to keep, but it is what plain decoding costs)."
            )
    for line in read("retrieval"):
        exact = next(x for x in read("retrieval") if x["values"] == line["values"] and x["way"] == "exact")
        if line["way"] == "mixed" and line["ms_a_row"] < min(
            x["ms_a_row"] for x in read("retrieval") if x["values"] == line["values"] and x["way"] != "mixed"
        ):
            found.append(
                f"- Values {line['values']}: a plain faiss index over [embedding, value] answers in {line['ms_a_row']:.2f} ms a row (exact: "
                f"{exact['ms_a_row']:.2f}); its recall falls to {min(line['recall']):.2f} where the price is large."
            )
    return "\n".join(found) or "- Nowhere among what was measured."


def rerank(read) -> str:
    rows = [["items", "way", "ms (middle half)", "x topk"]]
    for line in read("rerank_speed"):
        low, high = line["quartiles_ms"]
        rows.append(
            [
                f"{line['items']:,}",
                line["variant"],
                f"{line['ms']:.1f} ({low:.1f} to {high:.1f})",
                f"{line['over_topk']:.2f}",
            ]
        )
    settings = read("rerank_speed")[0]["settings"]
    return f"{settings['rows']} rows, {settings['threads']} thread; {_commit(read('rerank_speed')[0])}.\n\n{_markdown(rows)}"


def retrieval(read) -> str:
    lines = read("retrieval")
    rows = [["values", "way", *(f"price {p:g}" for p in (0, 0.1, 1, 10, 1000)), "ms a row (middle half)", "built in"]]
    for line in lines:
        recall = [f"{x:.3f}" for x in line["recall"]]
        spread = " to ".join(f"{x:.2f}" for x in line.get("quartiles_ms_a_row", []))
        took = f"{line['ms_a_row']:.2f}" + f" ({spread})" * bool(spread)
        rows.append([line["values"], line["way"], *recall, took, f"{line['build_s']:.1f} s"])
    s = lines[0]["settings"]
    what = f"{s['items']:,} items, width {s['width']}, {s['rows']} rows at a time, {s['probes']} probes, {s['threads']} thread"
    return f"{what}; {_commit(lines[0])}.\n\n{_markdown(rows)}"


def exactness(read) -> str:
    lines = read("exactness")
    total, other = sum(line["problems"] for line in lines), sum(line["equal_in_float64"] for line in lines)
    return (
        f"{total:,} random problems ({lines[0]['problems']:,} for each of four scales, with numba and in plain torch): "
        f"{sum(line['wrong'] for line in lines)} wrong; in {other:,} another item of the same float64 score; {_commit(lines[0])}."
    )


def tree(read) -> str:
    """A step along a tree of ids, by variant and by token of an item."""
    lines = read("tree_step")
    took = {(line["variant"], line["level"]): line for line in lines}
    rows = [["", "first token of an item", "second", "last"]]
    for name, words in TREE.items():
        cells = (f"{x['least_ms']:.3g} ({x['ms']:.3g})" for x in (took[name, level] for level in range(3)))
        rows.append([words, *cells])
    s = lines[0]["settings"]
    what = f"{s['rows']} rows, {s['items']:,} ids of 3 tokens out of 2,048, one thread; the least of {s['rounds']} rounds, and the median in brackets, in ms"
    return f"{what}; {_commit(lines[0])}.\n\n{_markdown(rows)}"


TREE = {
    "fill": "writing -inf to the scores, alone",
    "csr": "a mask alone, in torch",
    "transformers": "transformers' `PrefixConstrainedLogitsProcessor`",
    "mask": "ours, nothing promised",
    "one floor": "ours, one floor: prices and guard",
    "in place": "the same, written over the logits",
    "three": "ours, two floors and a cap",
    "children": "ours, one floor, no dense matrix: our own loop",
    "advance": "the next state",
}


def menu(read) -> str:
    """What it takes to build, save and open the menu of those ids."""
    line = read("tree_step")[0]
    return (
        f"The menu of these ids takes {line['catalog_cpu_s']:.2g} and {line['menu_cpu_s']:.2g} seconds of the processor (tree, and the rest "
        f"with three columns), {line['real_values_cpu_s']:.2g} for other values on the same tree, {line['save_cpu_s']:.2g} to save; opening "
        f"it takes {1e3 * line['load_cpu_s']:.2g} ms, since it is mapped and not read."
    )


def summary(read) -> str:
    """What README says of it."""
    lines = {line["variant"]: line for line in read("kernels")}
    rows = [["one slot for a batch", "ms by the clock", "processor time, x floor", "torch eager takes, processor time"]]
    said = (
        ("logits: ours, logit, 0/1", "logits: eager, logit, 0/1", "given scores, logits, 0/1 values"),
        (
            "logits: ours, probability, 0/1",
            "logits: eager, probability, 0/1",
            "given scores, probabilities, 0/1 values",
        ),
        ("logits: ours, logit, real", "logits: eager, logit, real", "given scores, logits, real values"),
        ("table: ours, logit, 0/1", "table: eager, logit, 0/1", "hidden states and item table, logits, 0/1 values"),
        (
            "table: ours, probability, 0/1",
            "table: eager, probability, 0/1",
            "hidden states and item table, probabilities, 0/1 values",
        ),
    )
    for ours, eager, words in said:
        if ours not in lines or eager not in lines:
            continue
        line, other = lines[ours], lines[eager]
        rows.append(
            [
                words,
                f"{line['least_ms']:.1f}",
                f"{line['cpu_over_floor']:.2f}",
                f"{other['cpu_over_ours']:.1f} times as long",
            ]
        )
    return f"{_where(lines['logits: read'])} Least of {lines['logits: read']['settings']['rounds']} rounds.\n\n{_markdown(rows)}"


TABLES: dict[str, Callable[..., str]] = {
    "given": given, "table": table, "first-call": first, "lost": lost, "rerank": rerank, "retrieval": retrieval,
    "exactness": exactness, "summary": summary, "tree": tree, "menu": menu,
}  # fmt: skip


def _where(line: Line) -> str:
    shape = f"{line['rows']} rows, {line['items']:,} items, width {line['width']}, {line['settings']['dtype']}"
    return f"{shape}, {line['settings']['threads']} threads; {_commit(line)}."


def _commit(line: Line) -> str:
    return f"{line['machine']}, commit {line['commit'][:7]}{'-dirty' * line['commit'].endswith('-dirty')}"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _lines(name: str) -> list[Line]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()]


if __name__ == "__main__":
    main()
