"""A/B experiments: who sees what, whether it can be believed, and by how much the arms differ.

Users are the unit of everything: they are assigned, once, by a salted hash of their name, and every metric is a mean over
users or a ratio of two such means, whose variance comes by the delta method. What users did before (CUPED) takes out what
made them differ anyway. tea-tasting estimates, tests and plans; p-values of all arms and metrics are corrected together.

One thing is our own: the interval of the lift. A covariate's mean is estimated from both arms and divided by
either arm's level, which matters when a lift is large; tea-tasting's interval leaves that out (tests show the difference).

Letters: U users, A arms; the first arm is the control.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import sequential
from .bootstrap import Known

CORRECTIONS = {
    "holm": "Holm's step-down procedure: the chance of any false finding among all of them is at most alpha",
    "bh": "Benjamini and Hochberg's procedure: of what is called found, at most alpha is false on average",
    "none": "no correction: every line alone is wrong with chance alpha",
}
SUSPICIOUS = 0.001  # a sample ratio less likely than this is a fault until shown otherwise
POWER = 0.8


class Metric(NamedTuple):
    """What is measured. Columns hold one number per user.

    top, bottom: the metric is sum(top) / sum(bottom) over an arm's users; without a bottom, the mean of top
    top_before, bottom_before: the same before the experiment; without, there is no covariate
    better: "higher" or "lower"
    """

    name: str
    top: str
    bottom: str | None = None
    top_before: str | None = None
    bottom_before: str | None = None
    about: str = ""
    better: str = "higher"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for c in self[1:5] if c is not None))

    def plain(self) -> Metric:
        """Without covariate."""
        return self._replace(top_before=None, bottom_before=None)


class Estimate(NamedTuple):
    """One arm against the control, in one metric.

    control, level: of the metric; with a covariate, as they would be had the arms been alike before
    difference:     level - control.  lift: level / control - 1; both with intervals, and the p-value of "no difference"
    adjusted:       the p-value, corrected for all that was tested
    variance:       what the covariate left of it: 0.6 is as good as 1 / 0.6 times the users
    error:          the standard error of the difference
    """

    arm: str
    metric: str
    control: float
    level: float
    difference: Known
    lift: Known
    adjusted: float
    variance: float = 1.0
    error: float = math.nan

    @property
    def p_value(self) -> float:
        return self.difference.p_value


class SampleRatio(NamedTuple):
    """Users per arm, how many there should be, and how likely counts are as far off as these. wrong: too unlikely to go on"""

    users: tuple[int, ...]
    due: tuple[float, ...]
    p_value: float

    @property
    def wrong(self) -> bool:
        return self.p_value < SUSPICIOUS


class Analysis(NamedTuple):
    """What an experiment says. planned: users of a sequential experiment, whose intervals hold at every look; else None"""

    arms: tuple[str, ...]
    ratio: SampleRatio
    estimates: tuple[Estimate, ...]
    alpha: float
    correction: str
    planned: int | None = None

    def of(self, arm: str, metric: str) -> Estimate:
        return next(e for e in self.estimates if (e.arm, e.metric) == (arm, metric))


class Plan(NamedTuple):
    """What an experiment of so many users can find, in 80 of 100 cases, and what it would take to find a given lift.

    users:  of all arms.  found: the least lift found.  lift, needed: a lift, and the users of all arms that find it
    """

    metric: str
    users: int
    found: float
    lift: float
    needed: int


# ---- before ---------------------------------------------------------------------------------------------------------


def assign(users: Sequence[Any] | np.ndarray, salt: str, shares: Sequence[float] | np.ndarray = (1, 1)) -> np.ndarray:
    """(U,) the arm of each user: where the sha256 of salt and name falls. The same for ever; another salt, other arms.

    shares: how the arms divide the users; any numbers above 0

    >>> assign(["ann", "ben", "cid", "dee"], "march").tolist()
    [0, 1, 0, 1]
    """
    return np.searchsorted(_shares(shares).cumsum()[:-1], places(users, salt), side="right")


def places(users: Sequence[Any] | np.ndarray, salt: str) -> np.ndarray:
    """(U,) the number in [0, 1) that the first 8 bytes of sha256(salt, a zero byte, name) stand for."""
    if not salt:
        raise ValueError("`salt` must not be empty: experiments with the same salt give users the same arms.")
    start = hashlib.sha256(f"{salt}\0".encode())
    number = np.empty(len(users))
    for place, user in enumerate(users):
        digest = start.copy()
        digest.update(str(user).encode())
        number[place] = (int.from_bytes(digest.digest()[:8], "big") >> 11) / 2.0**53
    return number


def plan(
    columns: Mapping[str, np.ndarray],
    metrics: Sequence[Metric],
    *,
    arms: int,
    users: int,
    lift: float = 0.02,
    alpha: float = 0.05,
    correction: str = "holm",
    power: float = POWER,
) -> list[Plan]:
    """What `users`, shared evenly by the arms, can find, if they vary as those of `columns` do.

    columns: by name, (U,) each: an earlier stretch of time, and what was before that if metrics have covariates
    lift:    whose price in users is asked
    """
    _known(correction)
    comparisons = (arms - 1) * len(metrics) if correction == "holm" else 1
    rows = np.ones(len(next(iter(columns.values()))), dtype=bool)
    found = []
    for metric in metrics:
        aggregates = _aggregates(columns, metric, rows)
        if not aggregates.mean(metric.top) or not aggregates.var(metric.top):
            found.append(Plan(metric.name, users, math.nan, lift, 0))
            continue
        # By the normal distribution: with many users scipy's noncentral t is not a number, and theirs is the same.
        of_two = {"alpha": alpha / comparisons, "power": power, "use_t": False}
        least = _tea(metric, n_obs=round(users * 2 / arms), **of_two).solve_power_from_aggregates(aggregates)
        needed = _tea(metric, rel_effect_size=lift, **of_two).solve_power_from_aggregates(aggregates, "n_obs")
        # The sign of a lift is all the same here: a test has two sides.
        found.append(
            Plan(
                metric.name,
                users,
                abs(float(least[0].rel_effect_size)),
                lift,
                math.ceil(float(needed[0].n_obs) * arms / 2),
            )
        )
    return found


# ---- after ----------------------------------------------------------------------------------------------------------


def sample_ratio(counts: Sequence[int] | np.ndarray, shares: Sequence[float] | None = None) -> SampleRatio:
    """Whether arms have the users they should have: a chi-square test over all arms at once.

    >>> sample_ratio([5000, 5200]).wrong, sample_ratio([5000, 5500]).wrong
    (False, True)
    """
    from scipy.stats import chisquare

    parts = _shares([1] * len(counts) if shares is None else shares)
    due = parts * sum(counts)
    p_value = float(chisquare(counts, due).pvalue) if sum(counts) else math.nan
    return SampleRatio(tuple(int(c) for c in counts), tuple(due.tolist()), p_value)


def analyse(
    columns: Mapping[str, np.ndarray],
    arm: np.ndarray,
    arms: Sequence[str],
    metrics: Sequence[Metric],
    *,
    shares: Sequence[float] | None = None,
    alpha: float = 0.05,
    correction: str = "holm",
    cuped: bool = True,
    planned: int | None = None,
) -> Analysis:
    """Every arm against the first, in every metric.

    columns: by name, (U,) each.  arm: (U,) numbers into `arms`
    shares:  how users should divide; evenly without
    cuped:   whether covariates are used where metrics have them
    planned: users of the whole experiment: intervals and p-values then hold at every look together (`sequential.py`)
    """
    _known(correction)
    if len(arms) < 2:
        raise ValueError(f"`arms` must name a control and at least one other, got {', '.join(arms) or 'none'}.")
    if not 0 < alpha < 1:
        raise ValueError(f"`alpha` must lie between 0 and 1, got {alpha!r}.")
    ratio = sample_ratio(np.bincount(arm, minlength=len(arms)), shares)
    for name, users in zip(arms, ratio.users, strict=True):
        if users < 2:
            raise ValueError(f"arm '{name}' must have at least 2 users, got {users}: there is nothing to compare.")
    found = []
    for metric in metrics:
        metric = metric if cuped else metric.plain()
        parts = [_aggregates(columns, metric, arm == a) for a in range(len(arms))]
        for a in range(1, len(arms)):
            seen = None if planned is None else (len(arm), max(planned, len(arm)))
            found.append(_estimate(metric, arms[a], parts[0], parts[a], alpha, seen))
    found.sort(key=lambda e: arms.index(e.arm))  # by arm, then as metrics stand
    return Analysis(tuple(arms), ratio, adjusted(found, correction, alpha), alpha, correction, planned)


def looks(
    columns: Mapping[str, np.ndarray],
    arm: np.ndarray,
    arms: Sequence[str],
    metrics: Sequence[Metric],
    count: int,
    **more: Any,
) -> Iterator[Analysis]:
    """The analyses of `count` looks, evenly spaced, the last at everybody. Rows stand in the order in which users came.

    A user counts once all that he will do is known. P-values are the least so far: what was found stays found.
    more: as for `analyse`
    """  # fmt: skip
    users, planned = len(arm), more.pop("planned", None) or len(arm)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"`looks` must be a whole number of at least 1, got {count!r}.")
    if users < count * len(arms) * sequential.LEAST:
        raise ValueError(
            f"{count} looks at {users} users of {len(arms)} arms leave fewer than {sequential.LEAST} users an arm for the first: "
            f"too few for means to be normal. Look at most {users // (len(arms) * sequential.LEAST)} times."
        )
    least: dict[tuple[str, str], float] = {}
    for look in range(1, count + 1):
        rows = slice(0, round(users * look / count))
        seen = analyse({n: x[rows] for n, x in columns.items()}, arm[rows], arms, metrics, **more, planned=planned)
        kept = []
        for e in seen.estimates:
            p = least[e[:2]] = _least(least.get(e[:2], math.nan), e.p_value)
            kept.append(e._replace(difference=e.difference._replace(p_value=p), lift=e.lift._replace(p_value=p)))
        yield seen._replace(estimates=adjusted(kept, seen.correction, seen.alpha))


def adjusted(estimates: Sequence[Estimate], correction: str, alpha: float = 0.05) -> tuple[Estimate, ...]:
    """The estimates with p-values corrected together; a p-value that is not a number tests nothing and counts for nothing."""
    _known(correction)
    there = {number: e.difference._asdict() for number, e in enumerate(estimates) if not math.isnan(e.p_value)}
    p = {number: known["p_value"] for number, known in there.items()}
    if p and correction != "none":
        tea = _tea_tasting()
        results = tea.experiment.ExperimentResult({str(n): {"pvalue": x} for n, x in p.items()})
        if correction == "holm":
            found = tea.adjust_fwer(results, alpha=alpha, arbitrary_dependence=True, method="bonferroni")
        else:
            found = tea.adjust_fdr(results, alpha=alpha, arbitrary_dependence=False)
        p = {int(n): min(1.0, x["pvalue_adj"]) for n, x in next(iter(found.values())).items()}
    return tuple(e._replace(adjusted=p.get(number, math.nan)) for number, e in enumerate(estimates))


# ---- one arm against the control, in one metric ---------------------------------------------------------------------


def _estimate(
    metric: Metric, arm: str, control: Any, treated: Any, alpha: float, seen: tuple[int, int] | None
) -> Estimate:
    nothing = Known(math.nan, math.nan, math.nan, math.nan)
    low, high = _level(control, metric), _level(treated, metric)
    if math.isnan(low) or math.isnan(high):
        return Estimate(arm, metric.name, low, high, nothing, nothing, math.nan)
    if not control.ratio_var(metric.top, metric.bottom) + treated.ratio_var(metric.top, metric.bottom) > 0:
        away, lift = nothing._replace(value=high - low), nothing._replace(value=high / low - 1 if low else math.nan)
        return Estimate(arm, metric.name, low, high, away, lift, math.nan)
    found = _tea(metric, confidence_level=1 - alpha).analyze_aggregates(control, treated)
    found = type(found)(*map(float, found))  # out of its own kinds of numbers
    error, alone = (_error(m, control, treated, 1.0, 1.0) for m in (metric, metric.plain()))
    if seen is None:
        p, half = found.pvalue, found.effect_size_ci_upper - found.effect_size
    else:
        p, half = sequential.p_value(found.effect_size / error, *seen), sequential.width(*seen, alpha) * error
    difference = Known(found.effect_size, found.effect_size - half, found.effect_size + half, p)
    lift = nothing
    if found.control > 0 and found.treatment > 0:
        away = math.exp(half / error * _error(metric, control, treated, found.control, found.treatment))
        more = found.treatment / found.control
        lift = Known(more - 1, more / away - 1, more * away - 1, p)
    return Estimate(arm, metric.name, found.control, found.treatment, difference, lift, p, (error / alone) ** 2, error)


def _error(metric: Metric, control: Any, treated: Any, low: float, high: float) -> float:
    """The standard error of log(high / low), levels that are adjusted by one covariate whose mean comes from both arms.

    With theta the covariate's coefficient and w the arm's share of the two arms' users, the delta method gives
        log high = mean over the treated of  y / high - theta (1 / high - w (1 / high - 1 / low)) x  + terms of the control
    and the like for the control, so the variance is a sum over the arms of var(y / level - slope x) / users. With both
    levels 1 it is the standard error of the difference.
    """
    whole = control + treated
    ratio = metric.top_before, metric.bottom_before
    spread = whole.ratio_var(*ratio)
    theta = whole.ratio_cov(metric.top, metric.bottom, *ratio) / spread if spread else 0.0
    total = 0.0
    for part, level, sign in ((control, low, -1), (treated, high, 1)):
        share = part.count() / whole.count()
        slope = theta * (1 / level - sign * share * (1 / high - 1 / low))
        variance = part.ratio_var(metric.top, metric.bottom) / level**2
        if theta:
            shared = part.ratio_cov(metric.top, metric.bottom, *ratio)
            variance += slope * slope * part.ratio_var(*ratio) - 2 * slope * shared / level
        total += variance / part.count()
    return math.sqrt(max(total, 0.0))


def _level(part: Any, metric: Metric) -> float:
    bottom = part.mean(metric.bottom)
    return float(part.mean(metric.top) / bottom) if bottom else math.nan


def _aggregates(columns: Mapping[str, np.ndarray], metric: Metric, rows: np.ndarray) -> Any:
    """Count, means and covariances of a metric's columns, as tea-tasting takes them."""
    from tea_tasting.aggr import Aggregates

    names = metric.columns
    table = np.stack([np.asarray(columns[name], dtype=np.float64)[rows] for name in names])
    spread = np.atleast_2d(np.cov(table))
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    return Aggregates(
        count_=table.shape[1],
        mean_={name: float(x) for name, x in zip(names, table.mean(1), strict=True)},
        var_={name: float(spread[i, i]) for i, name in enumerate(names)},
        cov_={(names[i], names[j]): float(spread[i, j]) for i, j in pairs},
    )


def _tea(metric: Metric, **settings: Any) -> Any:
    """The metric as tea-tasting knows it."""
    how = {"use_t": True, "equal_var": False} | settings
    return _tea_tasting().RatioOfMeans(metric.top, metric.bottom, metric.top_before, metric.bottom_before, **how)


def _tea_tasting() -> Any:
    try:
        import tea_tasting
    except ImportError:
        raise ValueError("experiments need tea-tasting. Install it: pip install 'spdd[experiment]'.") from None
    return tea_tasting


def _least(one: float, other: float) -> float:
    return other if math.isnan(one) else one if math.isnan(other) else min(one, other)


def _shares(shares: Sequence[float] | np.ndarray) -> np.ndarray:
    parts = np.asarray(shares, dtype=np.float64)
    if parts.ndim != 1 or len(parts) < 2 or not (np.isfinite(parts) & (parts > 0)).all():
        raise ValueError(f"`shares` must be a number above 0 for each of two arms or more, got {list(shares)}.")
    return parts / parts.sum()


def _known(correction: str) -> None:
    if correction not in CORRECTIONS:
        raise ValueError(f"`correction` must be one of {', '.join(CORRECTIONS)}, got {correction!r}.")
