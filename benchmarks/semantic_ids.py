"""Which semantic ids keep like items together, and how often do they collide? Amazon Sports.

LSH as in the paper, LSH through the mean, residual k-means; each on TF-IDF and on MiniLM vectors of the items' brand,
categories and id text (the data has no titles). Two views of "like": the 10 nearest items by cosine of the same vectors,
and the item a user buys next, which the vectors know nothing of. Lift is how much likelier than chance a shared prefix
is: among random items for the first, among random purchases for the second.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import os
import pathlib
import time

import numpy as np
import torch

from record import ROOT, bootstrap, origin, parser, table, write
from spdd.catalog import Catalog
from spdd.data.interactions import Items
from spdd.models import text
from spdd.models.semantic_ids import lsh, residual_kmeans

METHODS = {
    "lsh": lsh,
    "lsh, centred": lambda x, seed: lsh(x, seed=seed, centred=True),
    "residual k-means": residual_kmeans,
}
COLUMNS = ("brand", "categories", "text")
QUERIES, NEAR = 2000, 10


def main():
    options = parser(__doc__)
    options.add_argument("--embeddings", nargs="+", default=["tfidf", "minilm"], choices=text.EMBEDDINGS)
    options.add_argument("--seeds", type=int, default=5, help="LSH planes and k-means starts, per variant")
    options.add_argument(
        "--items", type=int, help="take the first so many only, as in the file; vectors of all take long"
    )
    options.add_argument("--cache", type=pathlib.Path, help="folder of vectors, NAME.npy; those not there are made")
    args = options.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    about = origin("semantic_ids", args)
    about["settings"].pop("cache")  # where vectors lie says nothing about them
    folder = pathlib.Path(os.environ.get("SPDD_DATA") or ROOT.parent / "shared" / "data") / "amazon-sports"
    items, pairs = read(folder, args.items)
    print(f"{len(items.id):,} items, {len(pairs):,} pairs of items bought in turn")
    results = []
    for name in args.embeddings:
        vectors = embed(name, items, args.cache)
        near = nearest(vectors, args.seed)
        distinct = len(torch.unique(vectors, dim=0))
        for method, make in METHODS.items():
            runs = [one(make, vectors, near, pairs, args.seed + n) for n in range(args.seeds)]
            result = {"vectors": name, "method": method, "distinct_vectors": distinct}
            result |= {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            result["next_1_interval"] = bootstrap([run["next_1"] for run in runs])
            results.append(result)
    table([shown(result) for result in results])
    write(about, results, args.out)


def read(folder: pathlib.Path, most: int | None) -> tuple[Items, np.ndarray]:
    """The first `most` items, and (P, 2) those of them that were bought one after the other."""
    with gzip.open(folder / "items.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][:most]
    columns = {
        "brand": [x["brand"] for x in lines],
        "categories": [x["categories"].replace("|", " ") for x in lines],
        "text": [x["idgenrec_text_id"] for x in lines],
    }
    items = Items(np.array([x["item_id"] for x in lines]), {k: np.array(v, object) for k, v in columns.items()})
    number = {id: n for n, id in enumerate(items.id.tolist())}
    with gzip.open(folder / "sequences.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [x["item_ids"].replace(",", " ").split() for x in csv.DictReader(file, delimiter="\t")]
    rows = [[number[id] for id in row if id in number] for row in rows]
    return items, np.array([pair for row in rows for pair in itertools.pairwise(row)])


def embed(name: str, items: Items, cache: pathlib.Path | None) -> torch.Tensor:
    path = cache / f"{name}.npy" if cache else None
    if path and path.exists():
        return torch.from_numpy(np.load(path))[: len(items.id)]
    vectors = text.EMBEDDINGS[name](text.item_texts(items, COLUMNS))
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors.numpy())
    return vectors


def nearest(vectors: torch.Tensor, seed: int) -> np.ndarray:
    """(Q * 10, 2) pairs: some items, each with its nearest others."""
    query = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:QUERIES]
    cosine = vectors[query] @ vectors.T
    found = cosine.scatter(1, query[:, None], -torch.inf).topk(NEAR).indices
    return torch.stack([query[:, None].expand(-1, NEAR), found], -1).view(-1, 2).numpy()


def one(make, vectors, near, pairs, seed) -> dict:
    """What one run gives: collisions, and shares of pairs with the same first token, or two, with their lift."""
    began = time.perf_counter()
    catalog: Catalog = make(vectors, seed=seed)
    seconds = time.perf_counter() - began
    result = {f"collisions_{k}": v for k, v in catalog.collisions()._asdict().items()}
    result |= {"prefixes_1": len(catalog.levels[1].token), "prefixes_2": len(catalog.levels[2].token)}
    for level in (1, 2):
        node = catalog.at(level).numpy()
        for name, some in (("near", near), ("next", pairs)):
            base = np.arange(len(node)) if name == "near" else some[:, 1]
            first = np.arange(len(node)) if name == "near" else some[:, 0]
            size = len(catalog.levels[level].token)
            chance = np.bincount(node[base], minlength=size) @ np.bincount(node[first], minlength=size)
            same = float((node[some[:, 0]] == node[some[:, 1]]).mean())
            result |= {f"{name}_{level}": same, f"{name}_{level}_lift": same / (chance / len(base) / len(first))}
    return result | {"seconds": seconds}


def shown(x: dict) -> dict:
    row = {
        "vectors, method": f"{x['vectors']}, {x['method']}",
        "ids": f"{x['collisions_ids']:.0f}",
        "sharing items": f"{x['collisions_items']:.0f}",
        "most on one": f"{x['collisions_largest']:.1f}",
        "2-prefixes": f"{x['prefixes_2']:.0f}",
    }
    for key, label in (("near_1", "near, 1"), ("near_2", "near, 2"), ("next_1", "next, 1"), ("next_2", "next, 2")):
        row[label] = f"{100 * x[key]:.1f} % ({x[f'{key}_lift']:.0f}x)"
    return row | {"seconds": f"{x['seconds']:.1f}"}


if __name__ == "__main__":
    main()
