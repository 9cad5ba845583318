"""SASRec: a causal transformer over item numbers that scores the next item with its own input table.

As in the paper by default: 80 wide, 2 blocks, 5 heads, the last 100 items, in-batch negatives plus 100 per positive.
Two things differ from the original, both for decoding. Positions count from the oldest item, so appending an item
moves none of the others and cached keys and values stay exactly right. And every history begins with a start token,
so a person without any history has a state too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checkpoint
from .histories import aligned

KIND = "sasrec"
POSITIONS = ("learned", "rotary")
LOSSES = ("sampled", "softmax", "bce")


@dataclass(frozen=True)
class Config:
    """What a SASRec is, and what it learns from.

    history, slots: how many items it reads, and for how many more positions are trained and memory is kept ready
    inner:          width of the feed-forward layers, in widths
    positions:      "learned" (a table, trained at random offsets so that every position is known) or "rotary"
    loss:           "sampled" softmax over the batch's own targets and `negatives` uniform ones per positive, corrected
                    for how often each item is drawn; "softmax" over all items; "bce" against `negatives` uniform ones
    temperature:    above 0, scores are cosines divided by it; 0 leaves plain inner products
    hidden_items:   share of history items hidden from the model while it trains
    """

    width: int = 80
    blocks: int = 2
    heads: int = 5
    history: int = 100
    slots: int = 30
    inner: int = 1
    dropout: float = 0.2
    positions: str = "learned"
    loss: str = "sampled"
    negatives: int = 100
    temperature: float = 0.0
    hidden_items: float = 0.0

    def __post_init__(self):
        for name in ("width", "blocks", "heads", "history", "slots", "inner", "negatives"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"`width` must be a multiple of twice `heads`, got width {self.width} and {self.heads} heads: "
                "each head takes an even share."
            )
        for name in ("dropout", "hidden_items"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {getattr(self, name)!r}.")
        if not self.temperature >= 0:
            raise ValueError(f"`temperature` must be at least 0, got {self.temperature!r}.")
        for name, known in (("positions", POSITIONS), ("loss", LOSSES)):
            if getattr(self, name) not in known:
                raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {getattr(self, name)!r}.")


class State(NamedTuple):
    """Where decoding stands. T columns: padding, the start token, the history, what was appended, and free ones.

    hidden:       (R, D) what the next item is scored with
    keys, values: per block (R, H, T, D / H). `advance` writes the next free column in place, so a state is used up by
                  advancing it; `take` copies
    seen:         (R, T) bool, columns that hold an item of the row
    position:     (R,) of the next item
    used:         columns in use
    """

    hidden: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    seen: Tensor
    position: Tensor
    used: int


class SASRec(nn.Module):
    """Scores of the next item. items: how many there are; their numbers are 0 to items - 1."""

    def __init__(self, items: int, config: Config | None = None):
        super().__init__()
        self.items, self.config = items, config or Config()
        c = self.config
        self.embedding = nn.Embedding(items + 1, c.width)  # the last row is the start token
        self.position = nn.Embedding(1 + c.history + c.slots, c.width) if c.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.blocks))
        self.norm = nn.LayerNorm(c.width)
        self.dropout = nn.Dropout(c.dropout)
        self._unit: tuple[Any, Tensor] | None = None  # rows of length 1, and of which weights
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 if "position" in name or "embedding" in name else c.width**-0.5)

    # ---- the seam to decoders ------------------------------------------------------------------------------

    def start(self, histories: Any) -> State:
        """The state before the first slot. histories: lists, arrays or (R, L) item numbers; -1 is padding."""
        items = aligned(histories, most=self.config.history, items=self.items, device=self.embedding.weight.device)
        x, seen, at = self.embed(items)
        mask = causal(seen)
        free = (len(x), self.config.slots)
        keys, values = [], []
        for block in self.blocks:
            x, key, value = block(x, mask, at)
            room = key.new_zeros(free[0], key.shape[1], free[1], key.shape[3])
            keys.append(torch.cat([key, room], 2))
            values.append(torch.cat([value, room], 2))
        used = seen.shape[1]
        seen = torch.cat([seen, seen.new_zeros(free)], 1)
        return State(self.scoring(x[:, -1]), tuple(keys), tuple(values), seen, at[:, -1] + 1, used)

    def logits(self, state: State) -> Tensor:
        """(R, M)"""
        return state.hidden @ self.table.T

    def advance(self, state: State, items: Tensor) -> State:
        """The state after items (R,) were appended. A row whose item is -1 stays as it is."""
        if state.used == state.seen.shape[1]:
            state = _grown(state, self.config.slots)
        used = state.used
        items = items.to(state.hidden.device)
        there = items >= 0
        state.seen[:, used] = there
        see = state.seen[:, None, None]  # (R, 1, 1, T)
        see = see | ~there[:, None, None, None]  # such a row's result is not used, but must not be NaN
        at = state.position[:, None]
        x = self.placed(self.embedding(items.clamp_min(0))[:, None], at)
        for block, keys, values in zip(self.blocks, state.keys, state.values, strict=True):
            x = block(x, see, at, (keys, values, used))[0]
        hidden = torch.where(there[:, None], self.scoring(x[:, 0]), state.hidden)
        return state._replace(hidden=hidden, position=state.position + there, used=used + 1)

    def hidden(self, state: State) -> Tensor:
        """(R, D); logits are hidden @ table.T"""
        return state.hidden

    @property
    def table(self) -> Tensor:
        """(M, D). Where it is not trained it stays the same tensor until its weights change, which writing through
        `.data` does not tell: it is asked for in every slot."""
        weight = self.embedding.weight
        table = weight[: self.items]
        if not self.config.temperature:
            return table
        if torch.is_grad_enabled() or weight.is_inference():  # the latter do not say when they change
            return F.normalize(table, dim=1)
        now = (weight._version, weight.data_ptr(), weight.dtype, weight.device)
        if self._unit is None or self._unit[0] != now:
            self._unit = (now, F.normalize(table, dim=1))
        return self._unit[1]

    def take(self, state: State, rows: Tensor) -> State:
        """The state of these rows, in this order; a copy, so a row may be taken more than once."""
        keys, values = (tuple(x[rows] for x in part) for part in (state.keys, state.values))
        return State(state.hidden[rows], keys, values, state.seen[rows], state.position[rows], state.used)

    # ---- the network ---------------------------------------------------------------------------------------

    def forward(self, items: Tensor, offset: Tensor | None = None, hide: Tensor | None = None) -> Tensor:
        """(R, 1 + L, D): what scores the item after the start token and after each of items (R, L).

        offset: (R,) added to every position.  hide: (R, L) bool, items later ones may not look at
        """
        x, seen, at = self.embed(items, offset)
        if hide is not None:
            seen = seen & F.pad(~hide, (1, 0), value=True)
        mask = causal(seen)
        for block in self.blocks:
            x = block(x, mask, at)[0]
        return self.scoring(x)

    def embed(self, items: Tensor, offset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors (R, 1 + L, D), which columns are real, and positions (R, 1 + L); items are flush right, -1 in front."""
        known = F.pad(items >= 0, (1, 0))
        start = ~known & F.pad(known[:, 1:], (0, 1), value=True)  # the column before the first item
        items = F.pad(items, (1, 0)).where(known, self.items)
        seen = known | start
        at = (seen.cumsum(1) - 1).clamp_min(0)
        if offset is not None:
            at = at + offset[:, None]
        return self.placed(self.embedding(items), at), seen, at

    def placed(self, x: Tensor, at: Tensor) -> Tensor:
        """Item vectors (R, L, D), scaled, with their positions where those are learned."""
        x = x * self.config.width**0.5
        if self.position is not None:
            x = x + self.position(at.clamp_max(self.position.num_embeddings - 1))
        return self.dropout(x)

    def scoring(self, x: Tensor) -> Tensor:
        """What is multiplied with the table, (..., D)."""
        x = self.norm(x)
        return F.normalize(x, dim=-1) / self.config.temperature if self.config.temperature else x


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside what came in."""

    def __init__(self, config: Config):
        super().__init__()
        width, inner = config.width, config.inner * config.width
        self.heads, self.share = config.heads, config.dropout
        self.rotary = config.positions == "rotary"
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(inner, width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor, at: Tensor, cache=None) -> tuple[Tensor, Tensor, Tensor]:
        """x (R, L, D), and the keys and values it was made with.

        mask:  (R, 1, L, T) bool, what each may look at.  at: (R, L) positions
        cache: keys and values (R, H, T, D / H) so far, and the column where those of x are written, in place
        """
        query, key, value = self.mix(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            query, key = rotated(query, at), rotated(key, at)
        if cache is not None:
            keys, values, column = cache
            keys[:, :, column], values[:, :, column] = key[:, :, 0], value[:, :, 0]
            key, value = keys, values
        share = self.share if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=share)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed(self.between(x))), key, value


def causal(seen: Tensor) -> Tensor:
    """(R, 1, L, L) bool: each column looks at the real ones up to itself, and at itself in any case."""
    length = seen.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=seen.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=seen.device)
    return ((seen[:, None] & before) | itself)[:, None]


def rotated(x: Tensor, at: Tensor) -> Tensor:
    """x (R, H, L, W), pairs of its last dimension turned by angles that grow with the position: only distances count."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = at[:, None, :, None] * speed  # (R, 1, L, W / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


def load(path: str | Path, fingerprint: str | None = None) -> SASRec:
    """The model in a checkpoint, ready to decode. fingerprint: of the items at hand; a model of others is refused."""
    held = checkpoint.load(path, kind=KIND, fingerprint=fingerprint)
    config = dict(held.config)
    model = SASRec(config.pop("items"), Config(**config))
    model.load_state_dict(held.weights)
    return model.eval()


def _grown(state: State, slots: int) -> State:
    keys, values = (tuple(F.pad(x, (0, 0, 0, slots)) for x in part) for part in (state.keys, state.values))
    return state._replace(keys=keys, values=values, seen=F.pad(state.seen, (0, slots), value=False))
