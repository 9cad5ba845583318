"""Synthetic listeners whose every motive is known: logs to train on, and the truth to judge slates by.

A listener has a taste and a mood. The mood starts from the taste and is pulled towards whatever is played; a slate is
looked at from the top with waning attention; what is looked at is played or skipped, what is played lasts some minutes.
Every answer is a pure function of seed, listener, visit and slot, so a row gets the same answer in any batch and order.
Nothing is learnt or fitted here, and no listener ever tires of the service or leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .interactions import Items, Sequences
from .worlds import _fold, _keys, _normal, _uniform

if TYPE_CHECKING:
    from .interactions import Interactions

SKIPPED, PLAYED = 0, 1  # the column `action` of a log
DAY = 86_400
FIRST_DAY = 19_000 * DAY  # where the log's clock begins, in seconds since 1970
EMPTY_MOOD_HOURS = 6.0  # after this long a mood has lost 63 % of what lifted it above the taste


class Visit(NamedTuple):
    """Who comes, and what they have just played: what the world needs to know to answer.

    user: (R,) listener numbers.  played: (R, L) item numbers, oldest first, padded with -1 at the front
    """

    user: Tensor
    played: Tensor

    def __array__(self, dtype=None, copy=None):
        """(R, L) what was played, so that a decoder's `exclude="seen"` knows what to leave out."""
        return np.array(self.played.cpu().numpy(), dtype=dtype)


class Response(NamedTuple):
    """What listeners did with each slot, or would do on average. All (R, K); an empty slot (-1) gets zeros.

    looked:  0/1, or the probability of it.  played, skipped: the same; together they are `looked`
    minutes: minutes played, unconditionally
    """

    looked: Tensor
    played: Tensor
    skipped: Tensor
    minutes: Tensor


class Mood(NamedTuple):
    """Where the oracle stands. mood: (R, D), slot: (R,) how many slots are filled"""

    mood: Tensor
    slot: Tensor


@dataclass(frozen=True)
class ListenerWorld:
    """A population of listeners and a catalogue; also a model (the oracle) for the decoders.

        appeal(j) = sharpness * <mood, vector_j> + quality_j - reserve
        P(looked at slot k) = attention^k,    P(played | looked) = sigmoid(appeal),    mood += pull * (vector_j - mood)

    The mood moves only with what is played. Between visits it falls back to the taste. A play lasts a share of the
    item's minutes whose mean is sigmoid(appeal + 1).

    >>> world = ListenerWorld(users=3, items=50)
    >>> visit = world.visit([0, 1, 2])
    >>> slate = world.logits(world.start(visit)).topk(10).indices  # what they like best now
    >>> bool(world.expect(visit, slate).played.sum() > world.expect(visit, torch.arange(30).view(3, 10)).played.sum())
    True
    """

    users: int = 2000
    items: int = 2000
    genres: int = 12
    providers: int = 40
    dim: int = 8
    pull: float = 0.25
    sharpness: float = 4.0
    reserve: float = 2.0
    attention: float = 0.92
    seed: int = 0

    def __post_init__(self):
        for name in ("users", "items", "genres", "providers", "dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` of a listener world must be a whole number of at least 1, got {value!r}.")
        for name in ("pull", "attention"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"`{name}` of a listener world must lie in [0, 1], got {value!r}.")

    # ---- the catalogue and its listeners ---------------------------------------------------------------------

    @cached_property
    def genre(self) -> Tensor:  # (M,) int64; the first genres are the largest
        return _zipf(_uniform(self._key(1), self.items)[0], self.genres, 0.5)

    @cached_property
    def provider(self) -> Tensor:  # (M,) int64; a few providers own most items
        return _zipf(_uniform(self._key(2), self.items)[0], self.providers, 1.0)

    @cached_property
    def vectors(self) -> Tensor:  # (M, D), length 1: near the centre of the genre
        noise = _normal(self._key(3), self.items * self.dim).view(-1, self.dim)
        return _unit(self._centres[self.genre] + 0.7 * noise / self.dim**0.5)

    @cached_property
    def quality(self) -> Tensor:  # (M,) how much more than its taste an item pleases
        return 0.6 * _normal(self._key(4), self.items)[0]

    @cached_property
    def new_creator(self) -> Tensor:  # (M,) bool; 15 %, as good as the others and seldom shown
        return _uniform(self._key(5), self.items)[0] < 0.15

    @cached_property
    def minutes(self) -> Tensor:  # (M,) length; every fourth genre is spoken word, and long
        long = torch.where(self.genre % 4 == 3, 30.0, 3.5)
        return long * (0.35 * _normal(self._key(6), self.items)[0]).exp()

    @cached_property
    def tastes(self) -> Tensor:  # (U, D), length 1: two genres, one liked more, and a way of one's own
        liked = (_uniform(self._key(7), self.users * 2)[0] * self.genres).long().view(-1, 2)
        noise = _normal(self._key(8), self.users * self.dim).view(-1, self.dim)
        first, second = self._centres[liked].unbind(1)
        return _unit(first + 0.6 * second + 0.5 * noise / self.dim**0.5)

    @cached_property
    def catalog(self) -> Items:
        """The items as a model's vocabulary, with columns for objectives: new_creator, genre, provider, minutes."""
        return Items(
            id=_names("item", self.items),
            attributes={
                "genre": _names("genre", self.genres)[self.genre.numpy()].astype(object),
                "provider": _names("provider", self.providers)[self.provider.numpy()].astype(object),
                "new_creator": self.new_creator.numpy(),
                "minutes": self.minutes.numpy(),
            },
        )

    @cached_property
    def _centres(self):  # (G, D)
        return _unit(_normal(self._key(9), self.genres * self.dim).view(-1, self.dim))

    def _key(self, what):
        return _keys(torch.tensor([what]), self.seed)

    # ---- the truth -------------------------------------------------------------------------------------------

    def visit(self, users, played=None) -> Visit:
        """A visit of these listeners (R,). played: (R, L), or one list per row; left out: they come in their own mood."""
        user = torch.as_tensor(users, dtype=torch.long)
        rows = [torch.empty(0, dtype=torch.long)] * len(user) if played is None else played
        rows = [torch.as_tensor(row, dtype=torch.long) for row in rows]
        length = max((len(row) for row in rows), default=0)
        padded = [torch.nn.functional.pad(row, (length - len(row), 0), value=-1) for row in rows]
        if user.numel() and not 0 <= int(user.min()) <= int(user.max()) < self.users:
            raise ValueError(
                f"`users` must name listeners from 0 to {self.users - 1}, got {int(user.min())} to {int(user.max())}."
            )
        if len(rows) != len(user):
            raise ValueError(f"`played` must hold one list per listener: {len(user)} listeners, got {len(rows)} lists.")
        return Visit(user, torch.stack(padded) if padded else user.new_empty(0, 0))

    def respond(self, visit: Visit, slates, seed: int = 0) -> Response:
        """What these listeners do with slates (R, K), sampled: 0/1 in `looked`, `played` and `skipped`, and minutes.

        seed: another number, another day; the same number, the same answer
        """
        slates = torch.as_tensor(slates, dtype=torch.long)
        return self._walk(self.mood(visit), slates, _fold(_fold(visit.user, self.seed), seed))[0]

    def expect(self, visit: Visit, slates, draws: int = 64, seed: int = 0) -> Response:
        """What these listeners do with slates (R, K) on average.

        Unbiased: the mean over `draws` sampled moods of the exact probability given the mood, so the error is that of
        the mood alone, some thousandths with 64 draws. Slot 0 is exact.
        """
        slates = torch.as_tensor(slates, dtype=torch.long)
        key = _fold(_fold(visit.user, self.seed), seed)[:, None]
        key = _fold(key, torch.arange(draws)).flatten()  # (R * draws,)
        wide = self.mood(visit).repeat_interleave(draws, 0)
        sampled, _ = self._walk(wide, slates.repeat_interleave(draws, 0), key, exact=True)
        return Response(*(x.view(len(slates), draws, -1).mean(1) for x in sampled))

    def mood(self, visit: Visit) -> Tensor:
        """(R, D) the mood of these listeners after what they have played."""
        mood = self.tastes[visit.user]
        for items in visit.played.unbind(1):
            mood = self._drift(mood, items, (items >= 0).double())
        return mood

    def appeal(self, mood: Tensor, items: Tensor) -> Tensor:
        """Log-odds (R, N) that items (R, N) are played once they are looked at."""
        # Added one dimension at a time: a matrix product may round differently in batches of different size.
        chosen = self.vectors[items]
        alike = sum((mood[:, None, d] * chosen[..., d] for d in range(self.dim)), torch.zeros(()))
        return self.sharpness * alike + self.quality[items] - self.reserve

    def _walk(self, mood, slates, key, exact=False):
        """The response slot by slot, and the mood after it. exact: report the chances of what is drawn."""
        columns = []
        for slot, items in enumerate(slates.unbind(1)):
            draw = _uniform(_fold(key, slot), 3)  # (R, 3): looks, plays, for how long
            looks = (items >= 0) * torch.tensor(self.attention, dtype=torch.float64) ** slot
            items = items.clamp_min(0)
            appeal = self.appeal(mood, items[:, None])[:, 0]
            plays, share, length = appeal.sigmoid(), (appeal + 1).sigmoid(), self.minutes[items]
            looked = (draw[:, 0] < looks).double()
            played = looked * (draw[:, 1] < plays)
            if exact:
                columns.append((looks, looks * plays, looks * (1 - plays), looks * plays * share * length))
            else:
                part = draw[:, 2] ** ((1 - share) / share)  # on average `share`
                columns.append((looked, played, looked - played, played * part * length))
            mood = self._drift(mood, items, played)
        if not columns:
            return Response(*[torch.zeros(len(slates), 0, dtype=torch.float64)] * 4), mood
        return Response(*(torch.stack(x, 1) for x in zip(*columns, strict=True))), mood

    def _drift(self, mood, items, played):
        return mood + self.pull * played[:, None] * (self.vectors[items.clamp_min(0)] - mood)

    # ---- the oracle: a model that knows ------------------------------------------------------------------------

    def start(self, histories: Visit) -> Mood:
        """The state before the first slot. histories: a `Visit`"""
        return Mood(self.mood(histories), torch.zeros(len(histories.user), dtype=torch.float64))

    def logits(self, state: Mood) -> Tensor:
        """(R, M) true log-odds that the listener, looking at it, plays each item next."""
        parts = [state.mood[:, d, None] * self.vectors[:, d] for d in range(self.dim)]
        return self.sharpness * sum(parts, torch.zeros(())) + self.quality - self.reserve

    def advance(self, state: Mood, items: Tensor) -> Mood:
        """The mood moves as far as it will on average: by the chance that the placed item is looked at and played."""
        plays = self.appeal(state.mood, items.clamp_min(0)[:, None])[:, 0].sigmoid()
        plays = plays * (items >= 0) * self.attention**state.slot
        return Mood(self._drift(state.mood, items, plays), state.slot + 1)

    # ---- logs ------------------------------------------------------------------------------------------------

    def log(self, sessions: int = 6, slots: int = 10) -> Sequences:
        """What a service that guessed tastes badly has shown, and what its listeners did: one row per listener.

        Each listener comes `sessions` times, one to three days apart, at a favoured hour, and gets a slate of `slots`
        items drawn by noisy taste and popularity; new creators are shown less than they deserve. One event per item
        looked at, with columns action (SKIPPED or PLAYED), minutes, slot, session. Times in milliseconds.
        """
        if slots > self.items:
            raise ValueError(
                f"`slots` of a log must not exceed the {self.items} items of the world, got {slots}. Show fewer items."
            )
        everyone = torch.arange(self.users)
        key = _fold(_fold(everyone, self.seed), 1_000_003)
        habit = _uniform(key, 1)[:, 0] * DAY  # the favoured time of day
        fame = 0.8 * _normal(self._key(10), self.items)[0] + 0.5 * self.quality - 1.2 * self.new_creator
        noise = torch.Generator().manual_seed(self.seed)
        mood, clock, columns = self.tastes, torch.zeros(self.users, dtype=torch.float64), []
        for session in range(sessions):
            gap = (1 + 2 * _uniform(_fold(key, session), 1)[:, 0]).floor() * DAY
            early = 3600 * _normal(_fold(key, session), 2)[:, 1]
            start = (clock // DAY) * DAY + gap + (habit + early).clamp(0, DAY - 3600)
            fade = (-(start - clock) / (3600 * EMPTY_MOOD_HOURS)).exp()[:, None]
            mood = self.tastes + fade * (mood - self.tastes)
            slates = _drawn(2.5 * (mood @ self.vectors.T) + fame, slots, noise)
            answer, mood = self._walk(mood, slates, _fold(key, sessions + session))
            length = torch.where(answer.played > 0, answer.minutes * 60, answer.looked * 5).cumsum(1)
            time = start[:, None] + length - length[:, :1]
            clock = time[:, -1]
            columns.append((slates, time, *answer, torch.full_like(slates, session)))
        return _sequences(_names("listener", self.users), columns, slots)

    def interactions(self, sessions: int = 6, slots: int = 10) -> Interactions:
        """The log as tables, as if read from files: one event per item looked at. Needs polars."""
        import polars as pl

        from .interactions import Interactions, Report

        log = self.log(sessions, slots)
        events = {"user": log.user[log.rows()], "item": self.catalog.id[log.item], "time": log.time, **log.extra}
        items = {"item": self.catalog.id, **{name: x.tolist() for name, x in self.catalog.attributes.items()}}
        shown = pl.DataFrame(items).filter(pl.col("item").is_in(events["item"]))
        report = Report(read=len(log.item), kept=len(log.item), items_read=self.items, items_kept=len(shown))
        return Interactions("listeners", pl.DataFrame(events), shown, report)


def _sequences(users, columns, slots):
    """One row per listener, events in order, without what was not looked at."""
    slates, time, looked, played, _, minutes, session = (torch.cat(x, 1) for x in zip(*columns, strict=True))
    slot = torch.arange(slates.shape[1]).remainder(slots).expand_as(slates)
    kept = looked > 0
    start = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)])
    extra = {"action": played.to(torch.int8), "minutes": minutes.float(), "slot": slot, "session": session}
    return Sequences(
        user=users,
        start=start.numpy(),
        item=slates[kept].numpy(),
        time=(1000 * (FIRST_DAY + time[kept])).long().numpy(),
        extra={name: x[kept].numpy() for name, x in extra.items()},
    )


def _drawn(scores, count, generator):
    """(U, count) items drawn without replacement by softmax(scores): the largest after Gumbel noise."""
    uniform = torch.rand(scores.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)
    return (scores.float() - (-uniform.log()).log()).topk(count).indices


def _zipf(uniform, count, power):
    """Numbers below `count`, the first the likeliest: P(n) ~ 1 / (n + 1)^power."""
    weight = torch.arange(1, count + 1, dtype=torch.float64) ** -power
    return torch.searchsorted(weight.cumsum(0) / weight.sum(), uniform.contiguous()).clamp_max(count - 1)


def _names(what, count):
    """Names that sort as they count."""
    digits = len(str(count - 1))
    return np.array([f"{what} {number:0{digits}d}" for number in range(count)])


def _unit(x):
    return torch.nn.functional.normalize(x, dim=-1)
