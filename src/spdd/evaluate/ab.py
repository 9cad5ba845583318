"""The simulated A/B: from arms and listeners to an experiment's result, and the same experiment over and over.

`run_experiment` is one experiment as a service would run it, beside what only a simulation knows: what everybody would have
done under every arm. `repeat` asks what such results are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import experiment, sequential
from .experiment import Analysis, Metric, Plan, analyse, assign, places, plan
from .simulated import METRICS, Outcomes


class Effect(NamedTuple):
    """What an arm does to everybody: level - control, and level / control - 1."""

    difference: float
    lift: float


class Shown(NamedTuple):
    """What an arm's slates were like. held: value-bearing items a slate.  met: share of slates that held the floor"""

    users: int
    slates: float
    held: float
    met: float


class Experiment(NamedTuple):
    """An experiment and its result, as plain data.

    arms:     names, the control first.  about: by arm, how its policy is made
    analysis: of everybody who came.  looks: of those who had come by then, if one was to look earlier
    shown:    by arm.  truth: by (arm, metric), of everybody under either arm; of an A/A it is no effect
    plan:     what was said before about what could be found
    table:    a row per user in the order they came: user, arm, columns
    """

    arms: tuple[str, ...]
    about: dict[str, str]
    metrics: tuple[Metric, ...]
    analysis: Analysis
    looks: tuple[Analysis, ...]
    shown: dict[str, Shown]
    truth: dict[tuple[str, str], Effect]
    plan: tuple[Plan, ...]
    table: dict[str, np.ndarray]
    salt: str
    aa: bool


def run_experiment(
    outcomes: Outcomes,
    *,
    salt: str,
    names: np.ndarray | None = None,
    about: Mapping[str, str] | None = None,
    metrics: Sequence[Metric] = METRICS,
    earlier: Mapping[str, np.ndarray] | None = None,
    lift: float = 0.02,
    aa: bool = False,
    alpha: float = 0.05,
    correction: str = "holm",
    cuped: bool = True,
    peek: int = 0,
) -> Experiment:
    """One experiment: users come, get an arm by the hash of salt and name, and are seen under that arm alone.

    outcomes: what everybody would do (`simulated.outcomes`); of all but a user's own arm only `truth` knows
    names:    (U,) of the users, which are hashed; their numbers without
    earlier:  columns as metrics name them, of a stretch before the experiment: what the plan rests on; none, no plan
    aa:       give all arms the control's policy: then there is nothing to find, and what is found is an error
    peek:     look so many times while users come; all intervals are then wider, and hold at every look together
    """
    arms = tuple(_aa_names(len(outcomes.arms)) if aa else outcomes.arms)
    played = outcomes.alike(arms) if aa else outcomes
    names = np.arange(played.users) if names is None else names
    order = np.argsort(places(names, f"{salt}: who comes when"), kind="stable")
    arm = assign(names, salt, np.ones(len(arms)))[order]
    columns = played.of(order, arm)
    settings: dict[str, Any] = {"alpha": alpha, "correction": correction, "cuped": cuped}
    looks = tuple(experiment.looks(columns, arm, arms, metrics, peek, **settings)) if peek else ()
    analysis = looks[-1] if looks else analyse(columns, arm, arms, metrics, **settings)
    planned = ()
    if earlier is not None:
        said = [metric if cuped else metric.plain() for metric in metrics]
        planned = tuple(
            plan(earlier, said, arms=len(arms), users=played.users, lift=lift, alpha=alpha, correction=correction)
        )
    return Experiment(
        arms,
        dict(about or {}),
        tuple(metrics),
        analysis,
        looks,
        {name: _shown(columns, arm == a) for a, name in enumerate(arms)},
        truth(played, metrics),
        planned,
        {"user": np.asarray(names)[order], "arm": np.array(arms)[arm], **columns},
        salt,
        aa,
    )


def truth(outcomes: Outcomes, metrics: Sequence[Metric] = METRICS) -> dict[tuple[str, str], Effect]:
    """By (arm, metric): the effect on everybody, over all noises. No estimate: it is what experiments estimate."""
    found = {}
    for metric in metrics:
        top = outcomes.columns[metric.top].sum((1, 2))
        count = outcomes.noises * outcomes.users
        level = top / (count if metric.bottom is None else outcomes.columns[metric.bottom].sum((1, 2)))
        for a, arm in enumerate(outcomes.arms[1:], 1):
            found[arm, metric.name] = Effect(float(level[a] - level[0]), float(level[a] / level[0] - 1))
    return found


def _shown(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> Shown:
    slates = columns["slates"][rows].sum()
    held, met = (float(columns[name][rows].sum() / slates) for name in ("wanted slots", "met"))
    return Shown(int(rows.sum()), float(slates / rows.sum()), held, met)


def _aa_names(count: int) -> list[str]:
    return ["control", *(f"control again{'' if count == 2 else f' {n}'}" for n in range(1, count))]


# ---- the same experiment many times over ----------------------------------------------------------------------------


class Rates(NamedTuple):
    """Of many experiments, by arm and metric.

    found:      share whose p-value was below alpha.  kept: the same of the corrected one
    covered:    share whose interval of the difference held the truth.  covered_lift: the same of the lift
    half:       half the interval of the difference, on average.  error: standard deviation of the estimates
    """

    arm: str
    metric: str
    found: float
    kept: float
    covered: float
    covered_lift: float
    half: float
    error: float


class Repeated(NamedTuple):
    """Many experiments on the same world.

    any:     share in which anything at all was found after the correction: with no effects, the family's false positives
    ratio:   share whose sample ratio had a p-value below alpha.  wrong: below what raises the alarm
    """

    runs: int
    users: int
    rates: tuple[Rates, ...]
    any: float
    ratio: float
    wrong: float

    def of(self, arm: str, metric: str) -> Rates:
        return next(r for r in self.rates if (r.arm, r.metric) == (arm, metric))


def repeat(
    outcomes: Outcomes,
    *,
    runs: int = 500,
    users: int | None = None,
    metrics: Sequence[Metric] = METRICS,
    alpha: float = 0.05,
    correction: str = "holm",
    cuped: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] = lambda runs: None,
) -> Repeated:
    """`runs` experiments, each analysed as any other.

    Drawn anew in every run: which `users` of the world come (without replacement; a quarter of it if nobody says), which
    noise each of them lives through, and, by a new salt, who sees which arm. Not drawn anew: the world, the model, the log
    that it learnt from and that covariates come from, and the noises, of which there are as many as were simulated.
    """
    known = truth(outcomes, metrics)
    found: list[list[tuple[float, ...]]] = []
    ratios = []
    for columns, arm in experiments(outcomes, runs, users, seed):
        seen = analyse(columns, arm, outcomes.arms, metrics, alpha=alpha, correction=correction, cuped=cuped)
        ratios.append(seen.ratio.p_value)
        found.append([])
        for e in seen.estimates:
            there = known[e.arm, e.metric]
            covers = [float(k.low <= t <= k.high) for k, t in ((e.difference, there.difference), (e.lift, there.lift))]
            half = (e.difference.high - e.difference.low) / 2
            found[-1].append((float(e.p_value < alpha), float(e.adjusted < alpha), *covers, half, e.difference.value))
        progress(1)
    named = [(e.arm, e.metric) for e in seen.estimates]
    table = np.array(found)  # (runs, estimates, 6)
    means, spread = table.mean(0), table[:, :, 5].std(0, ddof=1)
    rates = tuple(
        Rates(arm, metric, *map(float, row))
        for (arm, metric), row in zip(named, np.column_stack([means[:, :5], spread]), strict=True)
    )
    p = np.array(ratios)
    count = len(arm)
    return Repeated(
        runs, count, rates, float(table[:, :, 1].any(1).mean()), float((p < alpha).mean()), float((p < experiment.SUSPICIOUS).mean())
    )  # fmt: skip


class Peeked(NamedTuple):
    """Of many experiments that were looked at again and again: share in which a look found something.

    plain: any look's ordinary p-value was below alpha.  guarded: any look's, of the sequential test.  By (arm, metric)
    end:   the same of the last look alone, with the ordinary test
    """

    looks: int
    plain: dict[tuple[str, str], float]
    guarded: dict[tuple[str, str], float]
    end: dict[tuple[str, str], float]


def repeat_peeking(
    outcomes: Outcomes,
    *,
    runs: int = 500,
    users: int | None = None,
    looks: int = 10,
    metrics: Sequence[Metric] = METRICS,
    alpha: float = 0.05,
    cuped: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] = lambda runs: None,
) -> Peeked:
    """As `repeat`, each experiment looked at `looks` times, with the ordinary test and with the sequential one."""
    plain: dict[tuple[str, str], float] = {}
    guarded, end = dict(plain), dict(plain)
    for columns, arm in experiments(outcomes, runs, users, seed):
        hits: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
        for look in range(1, looks + 1):
            rows = slice(0, round(len(arm) * look / looks))
            seen = analyse(
                {n: x[rows] for n, x in columns.items()}, arm[rows], outcomes.arms, metrics, alpha=alpha, cuped=cuped,
                correction="none",
            )  # fmt: skip
            for e in seen.estimates:
                p = sequential.p_value(e.difference.value / e.error, rows.stop, len(arm))
                hits.setdefault((e.arm, e.metric), []).append((e.p_value < alpha, p < alpha))
        for name, told in hits.items():
            for into, hit in ((plain, any(t[0] for t in told)), (guarded, any(t[1] for t in told)), (end, told[-1][0])):
                into[name] = into.get(name, 0.0) + hit / runs
        progress(1)
    return Peeked(looks, plain, guarded, end)


def experiments(
    outcomes: Outcomes, runs: int, users: int | None = None, seed: int = 0
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """`runs` times who came, in which arm, and what they did: columns by name, and arms (N,)."""
    users = outcomes.users // 4 if users is None else users
    if not 2 * len(outcomes.arms) <= users <= outcomes.users:
        raise ValueError(
            f"`users` must lie between {2 * len(outcomes.arms)} and the world's {outcomes.users}, got {users}."
        )
    for run in range(runs):
        random = np.random.default_rng((seed, run))
        user = random.choice(outcomes.users, users, replace=False)
        arm = assign(user, f"{seed} {run}", np.ones(len(outcomes.arms)))
        yield outcomes.of(user, arm, random.integers(0, outcomes.noises, users)), arm
