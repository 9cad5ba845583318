"""TransAct for shelves: how likely each candidate is taken, by what a person did lately and by where and when they are.

As in the paper: up to 128 past actions (item, its traits, the kind of action, the surface) in 64 dimensions, a
transformer of 4 layers and 4 heads, context features (hour, weekday, surface), a head that gives the probability of
the target action. "A 3-hour temporal attention window" is read so: an action attends to what the same person did in
the three hours before it, its own session; the candidate then looks at all actions, with a bias by their age. The
random time window of the original (in training, hide what was done in the last T hours, T drawn) is an option.

What was given up. The original appends the candidate to every action and runs the transformer anew for every candidate:
M times 4 layers for every slot. Here actions are encoded once, causally, without knowing the candidate, and the
candidate meets them afterwards: attention of the candidate over all encoded actions, plus sums over the actions that
share its item, a trait, or the surface of the request. Both are sums over actions, so a placed shelf adds one term to
each: state after K slots is exactly what it would be afresh, and a slot costs O(M) whatever its number. Lost is only
that deeper layers could mix actions differently for each candidate.

A placed shelf is an action of its own kind, with an answer still unknown. Training knows such actions too: in every
session (no pause of three hours) a moment is drawn at which the slate was made; what was shown after it is seen as
placed, not as taken or skipped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checkpoint
from .actions import HOUR, MOST, Actions, Requests, Rows, first_of_person, first_of_tie, grouped, side_by_side

AGES = 16  # of an action at the time of a request, in doublings of a minute
PARTS = 16  # into which the regression cuts a number
QUICK = 8  # times as fast as the layers the regression learns: steps are few
PAIRS = 1 << 20  # of candidates and actions that are looked at together when decoding starts, to spare memory


@dataclass(frozen=True)
class Config:
    """Sizes and habits of a model. What an item or action is, is told by `items`, `sizes`, `actions` and `surfaces`.

    items:    M.  sizes: of the traits' columns.  match: the columns whose equality is worth noticing
    actions:  how many kinds of action a log knows, with 0 for nothing; a placed shelf is kind number `actions`
    surfaces: how many surfaces.  stats: how many numbers are known of each item
    window:   hours an action looks back.  hide: up to how many hours the random window hides in training, 0 none
    offset:   hours to add to times (UTC) for the hour and weekday that people see
    label:    what the label is called in the data: slates are judged by it too
    """

    items: int
    sizes: tuple[int, ...]
    match: tuple[int, ...]
    actions: int
    surfaces: int
    stats: int = 0
    width: int = 64
    layers: int = 4
    heads: int = 4
    inner: int = 128
    window: float = 3.0
    hide: float = 0.0
    offset: float = 0.0
    dropout: float = 0.1
    forget: float = 0.3  # share of items whose number is hidden in training, so that traits must do
    label: str = ""
    pairs: float = 0.0  # weight of the loss over pairs: one person's taken item should score above one left
    taken: tuple[
        float, ...
    ] = ()  # of each kind of action the share that was taken, -1 where it is never shown; see `taken`
    regression: bool = False  # beside the layers stands a logistic regression, learnt apart; see `Regression`


class Tokens(NamedTuple):
    """Actions as the encoder takes them. All (B, T)."""

    item: Tensor
    action: Tensor
    time: Tensor
    surface: Tensor
    there: Tensor


class Candidates(NamedTuple):
    """What is asked about, and when and where. item: (B or 1, P); now, surface: (B, P or 1)"""

    item: Tensor
    now: Tensor
    surface: Tensor


class Found(NamedTuple):
    """What candidates have found in the actions so far: sums over actions, so that one more can be added.

    top, weight: (B, P, H), total: (B, P, H, D / H): attention's largest score, and sums over exp(score - top)
    alike: (B, P, N, A) for each kind of likeness how many actions of each kind are alike
    """

    top: Tensor
    weight: Tensor
    total: Tensor
    alike: Tensor


class State(NamedTuple):
    """Where decoding stands.

    keys, values: per layer (R, H, T, D / H), with tokens: what the next placed shelf attends to
    last: (R, D) the newest encoded action.  context: (R, D)
    ask:  who is a candidate: every item (1, M), or each row's pool (R, P), -1 where it has fewer.  found: what they found
    query, own: (R, P, H, D / H) and (R, P, inner), what does not change while a slate fills
    latest: (R, 1) twice, the kind of the last action that is no placed shelf, and when
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    tokens: Tokens
    last: Tensor
    context: Tensor
    ask: Candidates
    found: Found
    query: Tensor
    own: Tensor
    latest: tuple[Tensor, Tensor]


class TransAct(nn.Module):
    """A ranker, and a model for the decoders: `start(requests)`, `logits(state)`, `advance(state, items)`.

    traits: of the items.  stats: (M, S) what is known of each item now, for decoding
    """

    def __init__(self, config: Config, codes: Any = None, stats: Any = None):
        super().__init__()
        c = self.config = config
        columns = len(c.sizes)
        codes = torch.zeros(c.items, columns) if codes is None else torch.as_tensor(codes)
        stats = torch.zeros(c.items, c.stats) if stats is None else torch.as_tensor(stats)
        self.register_buffer("codes", F.pad(codes.long(), (0, 0, 0, 1)))  # the last row is the unknown item's
        self.register_buffer("known", F.pad(stats.float(), (0, 0, 0, 1)))
        self.item = nn.Embedding(c.items + 1, c.width)
        self.trait = nn.ModuleList(nn.Embedding(size, c.width) for size in c.sizes)
        self.action = nn.Embedding(c.actions + 1, c.width)
        self.surface = nn.Embedding(c.surfaces, c.width)
        self.hour, self.weekday = nn.Embedding(24, c.width), nn.Embedding(7, c.width)
        for table in self.modules():
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.nobody = nn.Parameter(torch.zeros(2, c.width))  # key and value of an action that is always there
        self.key, self.value = nn.Linear(c.width, c.width), nn.Linear(c.width, c.width)
        self.query, self.asking = nn.Linear(c.width, c.width), nn.Linear(c.width, c.width)
        self.age = nn.Parameter(torch.zeros(AGES, c.heads))
        kinds = len(c.match) + 3  # any action, same surface, same item, same trait
        self.alike = nn.Parameter(torch.zeros(kinds, c.heads))
        self.worth = nn.Parameter(0.1 * torch.ones(kinds, c.actions + 1))
        self.of_item = nn.Linear(c.width + c.stats, c.inner)
        self.of_rest = nn.ModuleList(nn.Linear(c.width, c.inner, bias=False) for _ in range(3))  # context, last, found
        self.of_sums = nn.Linear(2 * kinds, c.inner, bias=False)
        self.out, self.wide = nn.Linear(c.inner, 1), nn.Linear(c.stats + 2 * kinds, 1)
        self.regression = Regression(c) if c.regression else None
        self.drop = nn.Dropout(c.dropout)

    # ---- the seam to decoders ------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, requests: Requests) -> State:
        """The state before the first slot: actions encoded, and looked at by every candidate, a few rows at a time."""
        r = requests.to(self.codes.device)
        tokens = Tokens(r.items, r.actions, r.times, r.surfaces, r.actions > 0)
        rank = torch.arange(r.items.shape[1], device=r.items.device)
        near = (r.times[:, :, None] - r.times[:, None]).abs() <= self.config.window * HOUR
        x, keys, values = self._encode(tokens, (rank[:, None] >= rank) & near & tokens.there[:, None])
        newest = torch.where(tokens.there, rank + 1, 0)
        newest = F.pad(newest, (1, 0)).amax(1)  # 0 where there is no action at all
        last = F.pad(x, (0, 0, 1, 0)).gather(1, newest[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]
        context = self._context(r.now, r.surface)
        every = torch.arange(self.config.items, device=r.now.device)[None]
        ask = Candidates(every if r.pool is None else r.pool, r.now[:, None], r.surface[:, None])
        found, many = [], max(1, PAIRS // max(1, ask.item.shape[1] * len(rank)))
        for some in (slice(at, at + many) for at in range(0, max(len(r.now), 1), many)):
            mine = Candidates(ask.item if r.pool is None else ask.item[some], ask.now[some], ask.surface[some])
            done = Tokens(*(column[some] for column in tokens))
            asking = self._ask(mine, context[some, None])
            found.append(self._look(mine, asking, x[some], done, done.there[:, None], self._begin(asking)))
        found = Found(*(torch.cat(part) for part in zip(*found, strict=True)))
        own = self._own(ask.item, self.known[ask.item.remainder(self.config.items + 1)])
        query, latest = self._ask(ask, context[:, None]), self._latest(tokens, tokens.there[:, None])
        return State(tuple(keys), tuple(values), tokens, last, context, ask, found, query, own, latest)

    @torch.no_grad()
    def logits(self, state: State) -> Tensor:
        """(R, M) log-odds that each item is taken if it comes next; outside its pool a row has the least of those inside."""
        item, all_of = state.ask.item, self.config.items
        stats = self.known[item.remainder(all_of + 1)]
        votes = self._judge(
            state.own, state.ask, stats, state.context[:, None], state.last[:, None], state.found, state.latest
        )
        scores = torch.stack(votes).mean(0)
        wide = scores.amin(1, keepdim=True).expand(-1, all_of + 1)
        return wide.scatter(1, item.remainder(all_of + 1).expand_as(scores), scores)[:, :-1]

    @torch.no_grad()
    def advance(self, state: State, items: Tensor) -> State:
        """The state after items (R,) were placed; a row with -1 stays as it is."""
        items = items.to(self.codes.device)[:, None]
        there = items >= 0
        kind = torch.where(there, self.config.actions, 0)
        new = Tokens(items, kind, state.ask.now, state.ask.surface, there)
        tokens = Tokens(*(torch.cat(pair, 1) for pair in zip(state.tokens, new, strict=True)))
        sees = tokens.there & (state.ask.now - tokens.time <= self.config.window * HOUR)
        x, keys, values = self._encode(new, sees[:, None], (state.keys, state.values))
        found = self._look(state.ask, state.query, x, new, there[:, None], state.found)
        last = torch.where(there, x[:, 0], state.last)
        return state._replace(keys=keys, values=values, tokens=tokens, last=last, found=found)

    # ---- learning -------------------------------------------------------------------------------------------------

    def forward(self, tokens: Tokens, sees: Tensor, ask: Candidates, asked: Tensor, stats: Tensor) -> Tensor:
        """(B, P) log-odds of candidates by what each of them may see.

        sees: (B, T, T) which tokens a token attends to.  asked: (B, P, T) which a candidate looks at
        stats: (B, P, S) what was known of the candidates then
        """
        votes = self.votes(tokens, sees, ask, asked, stats)
        return torch.stack(votes).mean(0)

    def votes(self, tokens: Tokens, sees: Tensor, ask: Candidates, asked: Tensor, stats: Tensor) -> list[Tensor]:
        """What `forward` is the mean of: the log-odds (B, P) by the layers, then those by the regression if there is one."""
        x, _, _ = self._encode(tokens, sees)
        context = self._context(ask.now, ask.surface)
        begun = self._begin(self._ask(ask, context))  # asked twice, as training hides other items each time
        found = self._look(ask, self._ask(ask, context), x, tokens, asked, begun)
        order = torch.arange(1, asked.shape[2] + 1, device=x.device)
        newest = F.pad(asked * order, (1, 0)).amax(2)[..., None].expand(-1, -1, x.shape[2])
        own = self._own(ask.item, stats)
        last, latest = F.pad(x, (0, 0, 1, 0)).gather(1, newest), self._latest(tokens, asked)
        return self._judge(own, ask, stats, context, last, found, latest)

    # ---- the parts ------------------------------------------------------------------------------------------------

    def _vector(self, items):
        """(..., D) items by number and traits; those of -1 say that nothing is known."""
        number = items.remainder(self.config.items + 1)
        codes = self.codes[number]
        own = self.item(number)
        if self.training and self.config.forget:
            own = own * (torch.rand(number.shape, device=own.device) >= self.config.forget)[..., None]
        return own + sum(table(codes[..., f]) for f, table in enumerate(self.trait))

    def _context(self, now, surface):
        hour, weekday = self._moment(now)
        return self.hour(hour) + self.weekday(weekday) + self.surface(surface)

    def _moment(self, now):
        """The hour of the day and the day of the week, Monday is 0."""
        hours = now // HOUR + round(self.config.offset)
        return hours % 24, (hours // 24 + 3) % 7

    def _encode(self, tokens, sees, before=None):
        """Encoded tokens (B, T, D), and keys and values of each layer. Every token also sees itself.

        before: keys and values of the tokens that came earlier, per layer
        """
        length = tokens.item.shape[1]
        itself = torch.eye(length, dtype=torch.bool, device=sees.device)
        sees = sees | F.pad(itself, (sees.shape[2] - length, 0))
        x = self.drop(self._vector(tokens.item) + self.action(tokens.action) + self.surface(tokens.surface))
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            x, k, v = block(x, sees, None if before is None else (before[0][i], before[1][i]))
            keys.append(k)
            values.append(v)
        return self.norm(x), tuple(keys), tuple(values)

    def _ask(self, ask, context):
        """(B, P, H, D / H) what candidates look for."""
        return (self.query(self._vector(ask.item)) + self.asking(context)).unflatten(-1, (self.config.heads, -1))

    def _begin(self, query) -> Found:
        """What is found before any action: an empty one that is always there, so that nobody looks at nothing."""
        key, value = (x.view(self.config.heads, -1) for x in self.nobody)
        top = (query * key).sum(-1)
        total = value.expand(*top.shape, -1)
        return Found(top, torch.ones_like(top), total, top.new_zeros(*top.shape[:2], *self.worth.shape))

    def _look(self, ask, query, x, tokens, sees, so_far: Found) -> Found:
        """What candidates have found once they have looked at these tokens too. query: see `_ask`.  sees: (B, P or 1, T)"""
        heads = self.config.heads
        key, value = self.key(x).unflatten(-1, (heads, -1)), self.value(x).unflatten(-1, (heads, -1))
        score = torch.einsum("bphd,bthd->bpth", query, key) / key.shape[-1] ** 0.5
        minutes = (ask.now[..., None] - tokens.time[:, None]).clamp_min(0) / 60_000
        score = score + self.age[(minutes + 1).log2().long().clamp_max(AGES - 1)]
        done, counts = F.one_hot(tokens.action, self.config.actions + 1).to(score.dtype), []  # (B, T, A)
        for kind, alike in enumerate(self._alike(ask, tokens)):
            alike = (alike & sees).to(score.dtype)  # (B, P, T)
            score = score + alike[..., None] * self.alike[kind]
            counts.append(alike @ done)
        score = score.masked_fill(~sees[..., None], -torch.inf)
        top = torch.maximum(so_far.top, score.amax(2)).detach() if score.shape[2] else so_far.top
        old, new = (so_far.top - top).exp(), (score - top[:, :, None]).exp()
        weight = so_far.weight * old + new.sum(2)
        total = so_far.total * old[..., None] + torch.einsum("bpth,bthd->bphd", new, value)
        counts = [x.expand(*top.shape[:2], -1) for x in counts]
        return Found(top, weight, total, so_far.alike + torch.stack(counts, 2))

    def _alike(self, ask, tokens):
        """Each kind of likeness in turn, (B, P, T) bool: any action, same surface, same item, same trait."""
        yield (tokens.action >= 0)[:, None]
        yield ask.surface[..., None] == tokens.surface[:, None]
        yield (ask.item[..., None] == tokens.item[:, None]) & (ask.item >= 0)[..., None]
        number = self.config.items + 1
        mine, theirs = self.codes[ask.item.remainder(number)], self.codes[tokens.item.remainder(number)]
        for f in self.config.match:
            yield (mine[..., f, None] == theirs[:, None, :, f]) & (mine[..., f, None] > 0)

    def _own(self, items, stats):
        """(B, P, inner) what the head makes of candidates themselves."""
        return self.of_item(torch.cat([self._vector(items), stats], -1))

    def _latest(self, tokens, sees):
        """Kind and time (B, P) of the last action that is no placed shelf, 0 where there is none. sees: (B, P, T)"""
        order = torch.arange(1, tokens.item.shape[1] + 1, device=sees.device)
        newest = F.pad(sees & (tokens.action < self.config.actions)[:, None], (1, 0)) * F.pad(order, (1, 0))
        newest = newest.amax(2)  # 0 where there is none
        return F.pad(tokens.action, (1, 0)).gather(1, newest), F.pad(tokens.time, (1, 0)).gather(1, newest)

    def _judge(self, own, ask, stats, context, last, found: Found, latest):
        """Log-odds (B, P) by the layers, and by the regression if there is one. own: see `_own`.  latest: see `_latest`"""
        worth, count = (found.alike * self.worth).sum(-1), found.alike.sum(-1)
        sums = torch.cat([worth / (count + 1), count.log1p()], -1)
        seen = (found.total / found.weight[..., None]).flatten(2)
        hidden = own + self.of_sums(sums)
        for layer, part in zip(self.of_rest, (context, last, self.drop(seen)), strict=True):
            hidden = hidden + layer(part)
        stats = stats.expand(*sums.shape[:2], -1)
        wide = self.wide(torch.cat([stats, sums], -1))
        votes = [(self.out(self.drop(F.gelu(hidden))) + wide)[..., 0]]
        if self.regression is not None:
            number = ask.item.remainder(self.config.items + 1)
            about, (kind, time) = (number, *self.codes[number].unbind(-1)), latest
            minutes = torch.where(kind > 0, (ask.now - time).clamp_min(0) / 60_000, 2.0**PARTS)
            moment = self._moment(ask.now)
            votes.append(self.regression(about, ask.surface, moment, (kind, minutes), stats, found.alike))
        return votes


class Regression(nn.Module):
    """Logistic regression on what the layers see too: a weight for every trait, moment and number; numbers also in parts.

    It learns by a loss of its own. Two that learn together lean on each other; learnt apart they err apart, and their mean
    ranks better than either.
    """

    def __init__(self, config: Config):
        super().__init__()
        c, self.surfaces = config, config.surfaces
        kinds = len(c.match) + 3
        numbers = c.stats + 1 + kinds * (c.actions + 1)
        taken = torch.tensor([*c.taken, *(c.actions + 1 - len(c.taken)) * [-1.0]])
        self.register_buffer("taken", torch.stack([taken.clamp_min(0), (taken >= 0).float()], 1), persistent=False)
        sizes = (c.items + 1, *c.sizes, c.surfaces, 24, 7, 24 * 7, c.actions, c.actions * c.surfaces)
        starts = torch.tensor((0, *sizes, *numbers * [PARTS])).cumsum(0)
        self.register_buffer("starts", starts[:-1], persistent=False)
        self.table, self.linear = nn.Embedding(int(starts[-1]), 1), nn.Linear(numbers, 1)
        for weight in (self.table.weight, self.linear.weight, self.linear.bias):
            nn.init.zeros_(weight)

    def forward(self, about, surface, moment, latest, stats, alike):
        """(B, P) log-odds. about: item and traits.  moment: hour and weekday.  latest: kind of the last action, minutes since

        stats: (B, P, S).  alike: see `Found`.  All others: (B, P or 1)
        """
        (hour, weekday), (kind, minutes) = moment, latest
        codes = (*about, surface, hour, weekday, 24 * weekday + hour, kind, kind * self.surfaces + surface)
        count = (alike[..., 1:].flatten(2) + 1).log2()  # of actions that are not nothing
        taken, shown = (alike @ self.taken).unbind(-1)
        share = (taken + 1) / (shown + 2)
        since = (minutes + 1).log2()[..., None].expand(*count.shape[:2], 1)
        stats = stats.expand(*count.shape[:2], -1)
        parts = torch.cat([(stats + 2) * PARTS / 4, since, 2 * count, share * PARTS], -1).long().clamp(0, PARTS - 1)
        codes = torch.cat([torch.stack([c.expand(count.shape[:2]) for c in codes], -1), parts], -1)
        numbers = torch.cat([stats, since / 8 - 1, count / 4, 4 * share - 2], -1)
        return QUICK * (self.table(codes + self.starts).sum(2) + self.linear(numbers))[..., 0]


class Block(nn.Module):
    """One layer: attention to earlier tokens, then two dense layers, each after a norm and added to what was there."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.before, self.after = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.mixed, self.join = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.up, self.down = nn.Linear(config.width, config.inner), nn.Linear(config.inner, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, sees, cache=None):
        """x (B, T, D) after the layer, with all keys and values (B, H, S, D / H). sees: (B, T, S) bool"""
        q, k, v = self.mixed(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=sees[:, None])
        x = x + self.drop(self.join(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.after(x))))), k, v


# ---- learning from logs -------------------------------------------------------------------------------------------


class Log:
    """A log on a device, cut into batches that a model can learn from or score.

    wanted: ascending places of the events to ask about; others are context alone
    ahead:  all wanted events of a person are asked about by what was known before the first of them
    """

    def __init__(self, actions: Actions, wanted: np.ndarray, config: Config, *, ahead: bool = False):
        self.start, self.wanted, self.config = actions.start, np.asarray(wanted, dtype=np.int64), config
        names = ("item", "action", "time", "surface")
        columns = {n: torch.from_numpy(np.asarray(getattr(actions, n)).astype(np.int64)) for n in names}
        rank = np.arange(len(actions.item)) - np.repeat(actions.start[:-1], np.diff(actions.start))
        columns["rank"] = torch.from_numpy(rank)
        known = rank[first_of_tie(actions)]  # how many events were over by then
        if ahead:
            known[self.wanted] = known[first_of_person(actions, self.wanted)]
        columns["known"] = torch.from_numpy(known)
        columns["session"] = torch.from_numpy(sessions(actions, config.window))
        columns["label"] = torch.from_numpy(np.asarray(actions.label).astype(np.float32))
        columns["stats"] = torch.from_numpy(np.asarray(actions.stats, dtype=np.float32))
        self.columns = columns

    def take(self, rows: Rows, device, generator: torch.Generator | None = None):
        """Arguments for the model's `forward`; labels, weights (B, P) and slates (B, P) of its candidates, -1 outside one.

        generator: then candidates are there twice, once with all that was known, once inside a slate made at a moment
        drawn for each session; without one, the first alone
        """
        if self.columns["item"].device != device:
            self.columns = {name: column.to(device) for name, column in self.columns.items()}
        event, there, shown, asked = (torch.from_numpy(x).to(device, non_blocking=True) for x in rows)
        done, asks = ({n: c[i] for n, c in self.columns.items()} for i in (event, shown))
        tokens = Tokens(done["item"], done["action"], done["time"], done["surface"], there)
        ask = Candidates(asks["item"], asks["time"], asks["surface"])
        near = (tokens.time[:, :, None] - tokens.time[:, None]) <= self.config.window * HOUR
        sees = (done["rank"][:, :, None] >= done["rank"][:, None]) & near & there[:, None]
        looks = self._over(done, there, asks["known"], ask.now, generator)
        if generator is None:
            return (
                (tokens, sees, ask, looks, asks["stats"]),
                asks["label"],
                asked.float(),
                torch.full_like(ask.item, -1),
            )
        cut, now, in_slate = _cuts(asks, asked, generator)
        past = self._over(done, there, cut, now, generator)
        same = (asks["session"][:, :, None] == asks["session"][:, None]) & in_slate[:, None]
        earlier = same & (asks["rank"][:, :, None] > asks["rank"][:, None])
        kind = torch.full_like(ask.item, self.config.actions)
        placed = Tokens(ask.item, kind, now, ask.surface, in_slate)
        near = (now[:, :, None] - tokens.time[:, None]) <= self.config.window * HOUR
        never = torch.zeros_like(near).transpose(1, 2)
        upper, lower = torch.cat([sees, never], 2), torch.cat([past & near, earlier], 2)
        looks = torch.cat([F.pad(looks, (0, earlier.shape[2])), torch.cat([past, earlier], 2)], 1)
        tokens = Tokens(*(torch.cat(pair, 1) for pair in zip(tokens, placed, strict=True)))
        ask = Candidates(ask.item.repeat(1, 2), torch.cat([ask.now, now], 1), ask.surface.repeat(1, 2))
        weight = torch.cat([asked, in_slate], 1).float()
        stats, label = asks["stats"].repeat(1, 2, 1), asks["label"].repeat(1, 2)
        slate = torch.where(in_slate, asks["session"], -1)
        slate = torch.cat([torch.full_like(slate, -1), slate], 1)
        return (tokens, torch.cat([upper, lower], 1), ask, looks, stats), label, weight, slate

    def _over(self, done, there, known, now, generator):
        """(B, P, L) the last `MOST` actions that were over when `known` events were."""
        rank = done["rank"][:, None]
        over = there[:, None] & (rank < known[..., None]) & (rank >= known[..., None] - MOST)
        if self.config.hide and generator is not None:
            hours = self.config.hide * torch.rand(len(now), 1, 1, generator=generator, device=now.device)
            over &= now[..., None] - done["time"][:, None] >= hours * HOUR
        return over


def sessions(actions: Actions, hours: float) -> np.ndarray:
    """(E,) int64, a number that the events of one session share: one person, no pause of more than `hours`."""
    row = actions.rows()
    new = np.ones(len(row), dtype=bool)
    new[1:] = (row[1:] != row[:-1]) | (np.diff(actions.time) > hours * HOUR)
    return np.cumsum(new)


def taken(actions: Actions, learn: np.ndarray, kinds: int) -> tuple[float, ...]:
    """Of each kind of action, what share of those shown was taken, -1 where none was shown: `Config.taken`."""
    kind = actions.action[learn]
    shown, good = np.bincount(kind, minlength=kinds), np.bincount(kind, actions.label[learn] > 0, minlength=kinds)
    return tuple(np.where(shown > 0, good / shown.clip(1), -1.0).tolist())


def _cuts(asks, asked, generator):
    """When the slate of each session was made: events known (B, P), the time (B, P), and who is in a slate (B, P).

    The moment is that of one of the session's shown events, drawn evenly; that event and those after it are the slate.
    """
    same = (asks["session"][:, :, None] == asks["session"][:, None]) & asked[:, None]  # (B, P, P)
    first, count = same.int().argmax(2), same.sum(2)
    chance = torch.rand(asked.shape, generator=generator, device=asked.device).gather(1, first)
    place = (first + (chance * count).long()).clamp_max(asked.shape[1] - 1)
    # Events of one millisecond belong to one slate: its answers come after all of them.
    cut, now = asks["known"].gather(1, place), asks["time"].gather(1, place)
    return cut, now, asked & (asks["rank"] >= cut)


class Shelves:
    """The task of learning which shown items are taken: see `train.fit`.

    learn, check: ascending places in the log, to learn from and to validate on; check's people may be learnt from too,
    so check should be later
    """

    kind = "transact"

    def __init__(self, model: TransAct, actions: Actions, learn, check, *, batch: int, fingerprint: str, seed: int = 0):
        self.model, self.fingerprint, self.seed, self.batch = model, fingerprint, seed, batch
        self.config = asdict(model.config)
        self.learn = Log(actions, learn, model.config)
        # What a slate is made of is decided before any answer to it; and a person's AUC over items that know of each other's
        # answers is no measure: of two items one of which was taken, the answer to the first betrays the second.
        self.check = Log(actions, check, model.config, ahead=True)
        self.people = actions.rows()[self.check.wanted]

    def batches(self, epoch: int, rank: int, world: int):
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.learn.start) - 1)
        groups = list(grouped(self.learn.start, self.learn.wanted, self.batch, order))
        mixed = np.random.default_rng((self.seed, epoch, 1)).permutation(len(groups))
        for step in range(-(-len(groups) // world)):
            group = groups[mixed[(step * world + rank) % len(groups)]]
            yield side_by_side(self.learn.start, self.learn.wanted, group)

    def loss(self, batch: Rows, generator: torch.Generator) -> Tensor:
        inputs, label, weight, slate = self.learn.take(batch, self.model.codes.device, generator)
        loss, share = torch.zeros((), device=weight.device), self.model.config.pairs
        for scores in self.model.votes(*inputs):
            losses = F.binary_cross_entropy_with_logits(scores, label.clamp_min(0), reduction="none")
            loss = loss + (losses * weight).sum() / weight.sum().clamp_min(1)
            if share:
                loss = loss + share * _over_pairs(scores, label > 0, slate)
        return loss

    def validate(self) -> dict[str, float]:
        """On `check`: auc over everything and that of the mean person, their mean first, by which epochs are chosen; minus the log loss."""
        if not len(self.check.wanted):
            return {}
        scores = score(self.model, self.check)
        labels = self.check.columns["label"].cpu().numpy()[self.check.wanted]
        loss = F.binary_cross_entropy_with_logits(torch.from_numpy(scores), torch.from_numpy(labels))
        over_all, own = auc(scores, labels), auc_per_person(scores, labels, self.people)[0]
        return {
            "mean auc": (over_all + own) / 2,
            "auc": over_all,
            "auc per person": own,
            "minus log loss": -float(loss),
        }


def _over_pairs(scores: Tensor, taken: Tensor, slate: Tensor) -> Tensor:
    """How surely the taken items of a slate score above those left: the mean of -log sigmoid over such pairs. All (B, P).

    Whether a person takes much or little cancels out of a pair, so this learns what the slate's order depends on. Items
    that know of each other's answers make no pair: they would learn that who just took something takes less next.
    """
    pair = (taken[:, :, None] & ~taken[:, None] & (slate[:, :, None] == slate[:, None]) & (slate >= 0)[:, None]).float()
    losses = F.softplus(scores[:, None] - scores[:, :, None])
    return (losses * pair).sum() / pair.sum().clamp_min(1)


def load(path: str | Path, fingerprint: str | None = None) -> TransAct:
    """The model in a checkpoint, ready to decode. fingerprint: of the items at hand; a model of others is refused."""
    held = checkpoint.load(path, kind=Shelves.kind, fingerprint=fingerprint)
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in held.config.items()
    }
    if config.pop("wide", False):  # older checkpoints say so
        raise ValueError(
            f"The ranker in '{path}' was trained with `wide`, an option that is no more. Train it anew; "
            "`regression=true` ranks better."
        )
    model = TransAct(Config(**config))
    model.load_state_dict(held.weights)
    return model.eval()


@torch.no_grad()
def score(model: TransAct, log: Log, batch: int = 4096) -> np.ndarray:
    """(N,) float32 log-odds of the wanted events of a log, each by what was known just before it."""
    training = model.training
    model.eval()
    out = np.zeros(len(log.columns["item"]), dtype=np.float32)
    for rows in grouped(log.start, log.wanted, batch, np.arange(len(log.start) - 1)):
        group = side_by_side(log.start, log.wanted, rows)
        inputs, *_ = log.take(group, model.codes.device)
        out[group.shown[group.asked]] = model(*inputs).float().cpu().numpy()[group.asked]
    model.train(training)
    return out[log.wanted]


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Chance that a taken item scores above one that was not; ties count half. nan where one kind is missing.

    >>> auc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    return float(auc_per_person(scores, labels, np.zeros(len(scores), dtype=np.int64))[0]) if len(scores) else np.nan


def auc_per_person(scores, labels, people) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean AUC over people with both kinds of items, weighted by how many items they were shown; then each one's.

    A score that is no number stands below all others. Returns the mean, AUCs (G,) and weights (G,).
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)  # numpy sorts them last, which is best
    people, taken = np.asarray(people), np.asarray(labels) > 0
    order = np.lexsort((scores, people))
    person, value, taken = people[order], np.asarray(scores)[order], taken[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = person[1:] != person[:-1]
    start = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    tie = np.ones(len(order), dtype=bool)
    tie[1:] = new[1:] | (value[1:] != value[:-1])
    first = np.flatnonzero(tie)
    middle = first + (np.diff(np.append(first, len(order))) - 1) / 2
    rank = middle[np.cumsum(tie) - 1] - start[group] + 1  # ties share the middle one
    size, good = np.bincount(group), np.bincount(group, taken)
    both = (good > 0) & (good < size)
    above = np.bincount(group, rank * taken)[both] - good[both] * (good[both] + 1) / 2
    each = above / (good[both] * (size[both] - good[both]))
    weight = size[both].astype(float)
    return (float(np.average(each, weights=weight)) if len(each) else float("nan")), each, weight
