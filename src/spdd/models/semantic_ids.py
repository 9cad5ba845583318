"""Ids that mean something: vectors that are close share the first tokens of their ids.

`lsh` cuts space by random planes, as in the paper. `residual_kmeans` looks where the items are: the first token is the
nearest of some centres, the next the nearest of others to what is left, and so on. Either way several items can come to
share an id. That can stay, since a catalog tells such items apart by their number, or `number` ends ids by one token more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..catalog import Catalog
from . import text as texts

if TYPE_CHECKING:
    from ..data.interactions import Items

APART = ("none", "token")
CHUNK = 1 << 25  # numbers in the largest table that is made at once: 128 MB of float32
SAMPLE = 1 << 14  # vectors among which the first centres are looked for
PER_CODE = 256  # vectors per centre that centres are fitted to; more change them little


def ids_for(
    items: Items,
    text: Sequence[str] = ("title", "brand", "categories"),
    *,
    method: str = "residual_kmeans",
    embed: Any = "tfidf",
    apart: str = "none",
    **options: Any,
) -> Catalog:
    """The catalog of semantic ids of these items, which carries their fingerprint.

    items:   the vocabulary
    text:    names of the attributes whose words say what an item is; those the items do not have are passed over
    method:  "residual_kmeans", or "lsh" for the ids of the paper
    embed:   "tfidf", "minilm" or "sentence_t5"; a function from a list of M texts to (M, D); or (M, D) vectors
    apart:   "none" leaves items that share an id to the catalog; "token" gives each an id of its own, see `number`
    options: of the method: levels, seed, and so on
    """
    for name, given, known in (("method", method, METHODS), ("apart", apart, APART)):
        if given not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {given!r}.")
    known = [name for name in inspect.signature(METHODS[method]).parameters if name != "embeddings"]
    if strange := [name for name in options if name not in known]:
        raise ValueError(f"ids by '{method}' have no setting '{strange[0]}'. There is: {', '.join(known)}.")
    if isinstance(embed, str):
        if embed not in texts.EMBEDDINGS:
            known = ", ".join(map(repr, texts.EMBEDDINGS))
            raise ValueError(f"`embed` must be one of {known}, a function of texts or (M, D) vectors, got {embed!r}.")
        embed = texts.EMBEDDINGS[embed]
    vectors = embed(texts.item_texts(items, text)) if callable(embed) else embed
    if len(vectors) != len(items.id):
        raise ValueError(f"`embed` must give one vector for each of {len(items.id)} items, got {len(vectors)}.")
    catalog = replace(METHODS[method](vectors, **options), items=items.fingerprint())
    return number(catalog) if apart == "token" else catalog


def lsh(embeddings: Any, *, levels: int = 3, bits: int = 8, seed: int = 0, centred: bool = False) -> Catalog:
    """Ids by locality-sensitive hashing: `levels` tokens of `bits` bits, each bit the side of a random plane.

    Two vectors at an angle a differ in a bit with probability a / pi (Charikar 2002), so alike items share tokens.

    embeddings: (M, D)
    centred:    planes through the mean of the vectors instead of the origin. Off, as in the paper; where all vectors
                point much the same way, as those of many sentence encoders do, planes through the origin
                leave most of them on one side, and ids collide more

    >>> lsh([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]], levels=2, bits=2).tokens.tolist()
    [[2, 1], [2, 1], [1, 2]]
    """
    _at_least_one(levels=levels, bits=bits)
    if bits > 24:
        raise ValueError(f"`bits` must be at most 24, got {bits}: a token is one of 2 ** bits. Use more `levels`.")
    x = _checked(embeddings)
    # Drawn on the CPU and multiplied in float64, so that a plane is the same everywhere and a side nearly always.
    planes = torch.randn(x.shape[1], levels * bits, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    planes, centre = planes.to(x.device), x.double().mean(0) if centred else 0.0
    power = 2 ** torch.arange(bits - 1, -1, -1, device=x.device)
    tokens = [
        (((some.double() - centre) @ planes > 0).view(-1, levels, bits) * power).sum(-1)
        for some in _chunks(x, max(planes.shape))
    ]
    return Catalog.of(torch.cat(tokens), sizes=[2**bits] * levels)


def residual_kmeans(embeddings: Any, *, levels: int = 3, codes: int = 256, seed: int = 0, rounds: int = 20) -> Catalog:
    """Ids by residual k-means: each token is the nearest of `codes` centres to what the tokens before it left over.

    The same seed gives the same ids on the same machine; another may add in another order.

    embeddings: (M, D), on the CPU or a GPU; M must be at least `codes`
    rounds:     of Lloyd's algorithm at most, for every level; it ends when no item changes its centre. Centres are
                fitted to a random 256 * codes of the items where there are more

    >>> residual_kmeans([[9.0, 0.0], [9.0, 1.0], [-9.0, 0.0], [-9.0, 1.0]], levels=2, codes=2).collisions()
    Collisions(ids=4, shared=0, items=0, largest=1)
    """
    _at_least_one(levels=levels, codes=codes, rounds=rounds)
    rest = _checked(embeddings)
    if codes > len(rest):
        raise ValueError(
            f"`codes` is {codes} but there are only {len(rest)} items to find centres for. Set `codes` to at most that; "
            "about the square root of the number of items makes a good tree."
        )
    rest, tokens, generator = rest.float(), [], torch.Generator().manual_seed(seed)
    for _ in texts.watched(range(levels), "finding ids"):
        centres, nearest = kmeans(rest, codes, generator, rounds)
        tokens.append(nearest)
        rest = rest - centres[nearest]
    return Catalog.of(torch.stack(tokens, 1), sizes=[codes] * levels)


METHODS: dict[str, Callable[..., Catalog]] = {"lsh": lsh, "residual_kmeans": residual_kmeans}


def number(catalog: Catalog) -> Catalog:
    """The same ids with one more token, which numbers the items of an id from 0 in their order: now all differ.

    >>> number(Catalog.of([[5, 1], [0, 0], [5, 1]])).tokens.tolist()
    [[5, 1, 0], [0, 0, 0], [5, 1, 1]]
    """
    place = torch.empty_like(catalog.order).scatter(0, catalog.order, torch.arange(len(catalog), device=catalog.device))
    last = place - catalog.levels[-1].first[catalog.at(catalog.depth)]
    tokens = torch.cat([catalog.tokens, last[:, None]], 1)
    return Catalog.of(tokens, sizes=[*catalog.sizes, catalog.collisions().largest], items=catalog.items).to(
        catalog.device
    )


# ---- k-means ----------------------------------------------------------------------------------------------------


def kmeans(x: Tensor, codes: int, generator: torch.Generator, rounds: int) -> tuple[Tensor, Tensor]:
    """Centres (codes, D) and the nearest of them (M,) for vectors (M, D), by Lloyd's algorithm from k-means++."""
    mixed = torch.randperm(len(x), generator=generator)[: PER_CODE * codes].to(x.device)
    some = x[mixed]
    centres = _spread(some[: max(SAMPLE, 4 * codes)].cpu(), codes, generator).to(x.device)
    nearest, far = _nearest(some, centres)
    for _ in range(rounds):
        centres = _means(some, nearest, far, codes)
        before = nearest
        nearest, far = _nearest(some, centres)
        if nearest.equal(before):
            break
    return centres, _nearest(x, centres)[0]


def _nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The centre nearest to each vector, the first of several, and the squared distance to it: (M,) each."""
    length = centres.square().sum(1)
    found = [(length - 2 * (some @ centres.T)).min(1) for some in _chunks(x, len(centres))]
    far = torch.cat([part.values for part in found]) + x.square().sum(1)
    return torch.cat([part.indices for part in found]), far


def _means(x: Tensor, nearest: Tensor, far: Tensor, codes: int) -> Tensor:
    """(codes, D) the mean of each centre's vectors. A centre without any moves to a vector that is far from its own.

    A product with a 0/1 table, and not `index_add`, which adds in another order in every run on a GPU.
    """
    total, count = torch.zeros(codes, x.shape[1], device=x.device), torch.zeros(codes, device=x.device)
    for some, label in zip(_chunks(x, codes), _chunks(nearest, codes), strict=True):
        table = torch.nn.functional.one_hot(label, codes).to(x.dtype)
        total, count = total + table.T @ some, count + table.sum(0)
    farthest = far.argsort(descending=True, stable=True)[:codes]
    rank = ((count == 0).cumsum(0) - 1).clamp_min(0)  # the first empty centre takes the farthest vector
    return torch.where((count == 0)[:, None], x[farthest[rank]], total / count.clamp_min(1)[:, None])


def _spread(x: Tensor, codes: int, generator: torch.Generator) -> Tensor:
    """(codes, D) vectors to start from, by k-means++: the farther from those chosen, the likelier, by squared distance."""
    draws = torch.rand(codes, generator=generator, dtype=torch.float64)
    chosen, far = [], torch.ones(len(x), dtype=torch.float64)
    for draw in draws:
        mass = far.cumsum(0)
        place = torch.searchsorted(mass, draw * mass[-1], right=True).clamp_max(len(x) - 1)
        chosen.append(place)
        step = (x - x[place]).square().sum(1).double()
        far = torch.minimum(far, step) if len(chosen) > 1 else step
    return x[torch.stack(chosen)]


def _chunks(x: Tensor, width: int) -> Iterator[Tensor]:
    """x in pieces, so that a table of `width` columns for each piece stays small."""
    yield from x.split(max(1, CHUNK // width))


# ---- what came in -----------------------------------------------------------------------------------------------


def _checked(embeddings: Any) -> Tensor:
    """(M, D) floating point where it was, or an error that says what is wrong."""
    x = embeddings if isinstance(embeddings, Tensor) else torch.as_tensor(np.asarray(embeddings))
    if x.dim() != 2 or not x.numel():
        raise ValueError(f"`embeddings` must be (M, D), a vector for each of M >= 1 items, got {tuple(x.shape)}.")
    x = x.detach() if x.is_floating_point() else x.float()
    wrong = int((~x.isfinite()).any(1).sum())
    if wrong:
        first = int((~x.isfinite()).any(1).nonzero()[0])
        raise ValueError(
            f"`embeddings` must be finite, but {wrong} of {len(x)} vectors hold NaN or infinity, the first is that of "
            f"item {first}. Give such items a vector, of zeros if nothing is known about them."
        )
    return x


def _at_least_one(**numbers: int) -> None:
    for name, x in numbers.items():
        if x < 1:
            raise ValueError(f"`{name}` must be at least 1, got {x}.")
