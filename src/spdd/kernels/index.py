"""The best items under prices, approximately: one inner-product index (faiss) of [embedding, value] serves every price.

relevance + price · value is [hidden, price] · [embedding, value], so prices are part of the question and nothing is built
anew when they move. What has to be kept from harm is the search: clusters and neighbours of the longer vectors follow
whatever coordinate is large. Scaled small, values are mixed in every cluster and a large price finds nothing; scaled
large, they split what belongs together. So items are first parted into bands of like values, and only embeddings are
clustered, within each band; a cluster is asked where [hidden, price] · its mean is large. Found items are scored again,
exactly, in float64. Opt-in: `priced.py` is exact and needs none of this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .priced import logits_at, prepare, priced_topk
from .reference import Barred, Product, group_items
from .stream import Lists

GROUPS = 32  # with more distinct values than this, bands
BAND = 256  # items; a band is not halved further
TAIL = 0.125  # share of the items at each end that are not in the middle band
DEPTH = 8  # halvings of all objectives together
KINDS = ("ivf", "hnsw")
AHEAD = 2  # candidates asked for each item wanted


class Found(NamedTuple):
    """Best first; -1, -inf and -inf where there are no more. items, score, logit: (R, k); score and logit float64

    short: (R,) fewer than k were found, though more are open
    """

    items: Tensor
    score: Tensor
    logit: Tensor
    short: Tensor


class Index:
    """An index of items and their values.

    table: (M, D) of any float type.  value: (C, M).  kind: "ivf", clusters, or "hnsw", a graph for each band
    probes: clusters looked into for each row, or how many neighbours a graph keeps in view: more finds more, slower
    lists:  clusters in all; 2 √M if not given

    >>> table, new = torch.eye(4), torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    >>> Index(table, new).topk(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[2.5]]), k=2).items  # needs faiss
    tensor([[0, 3]])
    """

    def __init__(self, table, value, *, kind: str = "ivf", probes: int = 64, lists: int | None = None, seed: int = 0):
        if kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}.")
        faiss = imported()
        self.table, self.value, self.kind, self.probes = table, prepare(value).value, kind, probes
        self.band = bands(self.value)
        # A coordinate of values spreads as one of embeddings does, and prices make up for it.
        each = table.float().square().mean().sqrt().double()
        self.unit = each / self.value.std(1, unbiased=False).clamp_min(1e-300) if len(self.value) else self.value[:, 0]
        centred = (self.value - self.value.mean(1, keepdim=True)) * self.unit[:, None]
        items = torch.cat([table.float(), centred.T.float()], 1).contiguous()  # (M, D + C)
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            build = self._clusters if kind == "ivf" else self._graphs
            self.parts: Any = build(items, lists or 2 * round(len(items) ** 0.5), seed)
        finally:
            faiss.omp_set_num_threads(threads)

    def topk(self, hidden: Tensor, price: Tensor, k: int, *, seen=None, used=None) -> Found:
        """The k best items found for each row by logit + price · value, none of them barred.

        hidden: (R, D).  price: (R, C).  seen, used: (R, L) items not to be found; -1 pads
        As many more are asked for as are barred, so the index alone decides what is missed.
        """
        lists = Lists.of(Barred(seen, used), len(hidden), len(self.table), hidden.device)
        items = self.candidates(hidden, price, AHEAD * k + lists.items.shape[1])
        there = items >= 0
        if lists.items.shape[1]:
            place = torch.searchsorted(lists.items, items).clamp_max(lists.items.shape[1] - 1)
            there &= lists.items.gather(1, place) != items
        logit = logits_at(Product(hidden, self.table), items).masked_fill(~there, -torch.inf)
        worth = torch.einsum("rc,crn->rn", price.double(), self.value[:, items.clamp_min(0)])
        total = (logit + worth).masked_fill(~there, -torch.inf)
        order = items.argsort(dim=1)
        order = order.gather(1, total.gather(1, order).sort(dim=1, descending=True, stable=True).indices)[:, :k]
        items, total, logit = items.gather(1, order), total.gather(1, order), logit.gather(1, order)
        missing = k - items.shape[1]
        items, total, logit = (
            torch.nn.functional.pad(x, (0, missing), value=pad)
            for x, pad in ((items.masked_fill(total == -torch.inf, -1), -1), (total, -torch.inf), (logit, -torch.inf))
        )
        open_ = len(self.table) - (lists.items < len(self.table)).sum(1)
        return Found(items, total, logit, (items >= 0).sum(1) < open_.clamp_max(k).to(items.device))

    def candidates(self, hidden: Tensor, price: Tensor, count: int) -> Tensor:
        """(R, N) item numbers the index holds for best, at least `count` of each row where it finds them; -1 for none."""
        faiss = imported()
        query = torch.cat([hidden.float(), (price.double() / self.unit).float()], 1).contiguous()  # (R, D + C)
        count = min(count, len(self.table))
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            if self.kind == "hnsw":
                return torch.cat([self._near(part, query, count) for part in self.parts], 1)
            index, mean = self.parts
            index.nprobe = min(self.probes, len(mean))
            best = (query @ mean.T).topk(index.nprobe, 1)
            found = index.search_preassigned(query.numpy(), count, best.indices.numpy(), best.values.numpy())
            return torch.from_numpy(found[1])
        finally:
            faiss.omp_set_num_threads(threads)

    def recall(self, hidden: Tensor, price: Tensor, k: int = 10) -> float:
        """The share of the k truly best items that are found: what to look at before this is trusted."""
        exact = priced_topk(Product(hidden, self.table), self.value, price, k).items
        found = self.topk(hidden, price, k).items
        return float((exact[:, :, None] == found[:, None]).any(2)[exact >= 0].double().mean())

    def _clusters(self, items: Tensor, lists: int, seed: int):
        faiss = imported()
        of, clusters = torch.empty(len(items), dtype=torch.int64), 0
        for band in range(int(self.band.max()) + 1):
            mine = (self.band == band).nonzero()[:, 0]
            few = max(1, min(len(mine), round(lists * len(mine) / len(items))))
            points = items[mine].numpy()
            means = faiss.Kmeans(
                items.shape[1], few, niter=10, seed=seed + 1, min_points_per_centroid=1, max_points_per_centroid=64
            )
            means.train(points)
            of[mine] = torch.from_numpy(means.index.search(points, 1)[1][:, 0]) + clusters
            clusters += few
        mean = torch.zeros(clusters, items.shape[1]).index_add_(0, of, items)
        mean /= of.bincount(minlength=clusters).clamp_min(1)[:, None]
        coarse = faiss.IndexFlatIP(items.shape[1])
        coarse.add(mean.numpy())
        index = faiss.IndexIVFFlat(coarse, items.shape[1], clusters, faiss.METRIC_INNER_PRODUCT)
        index.add_core(len(items), faiss.swig_ptr(items.numpy()), None, faiss.swig_ptr(of.numpy()))
        return index, mean

    def _graphs(self, items: Tensor, lists: int, seed: int):
        faiss = imported()
        parts = []
        for band in range(int(self.band.max()) + 1):
            mine = (self.band == band).nonzero()[:, 0]
            flat = len(mine) <= 4 * BAND
            index: Any = faiss.IndexFlatIP(items.shape[1])
            if not flat:
                index = faiss.IndexHNSWFlat(items.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
                index.hnsw.efConstruction = 64
            index.add(items[mine].numpy())
            parts.append((index, mine))
        return parts

    def _near(self, part, query: Tensor, count: int) -> Tensor:
        faiss = imported()
        index, mine = part
        options: Any = {}
        if isinstance(index, faiss.IndexHNSW):
            options["params"] = faiss.SearchParametersHNSW(efSearch=max(self.probes, count))
        place = torch.from_numpy(index.search(query.numpy(), min(count, len(mine)), **options)[1])
        return mine[place.clamp_min(0)].where(place >= 0, -1)


def bands(value: Tensor) -> Tensor:
    """(M,) the band of each item: its group where values have few levels, else the middle, and at both ends halves of what is
    further out, again and again, so that the few items a large price asks for stand by themselves. value: (C, M)
    """
    groups = group_items(value, GROUPS)
    if groups is not None:
        return groups.member.long()
    count = value.shape[1]
    deepest = max(1, DEPTH // len(value))
    place = []
    for worth in value:
        rank = torch.empty(count, dtype=torch.int64)
        rank[worth.argsort(stable=True)] = torch.arange(count)
        end = torch.minimum(rank, count - 1 - rank)  # how many are further out
        depth = (count * TAIL / (end + 1).clamp_min(BAND)).log2().floor().clamp(-1, deepest).long() + 1
        place.append(torch.where(rank < count / 2, -depth, depth))
    return torch.stack(place).unique(dim=1, return_inverse=True)[1]


def imported() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("an approximate index needs faiss: pip install 'spdd[ann]'") from error
    return faiss
