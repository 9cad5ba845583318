"""Experiments: arms are stable and fair, estimates agree with tea-tasting, and errors come as often as is said."""

import math

import numpy as np
import pytest

from spdd.evaluate import sequential
from spdd.evaluate.experiment import (
    Metric,
    adjusted,
    analyse,
    assign,
    looks,
    places,
    plan,
    sample_ratio,
)

tt = pytest.importorskip("tea_tasting")

MEAN = Metric("minutes", "minutes", None, "minutes before")
RATIO = Metric("share", "wanted", "plays", "wanted before", "plays before")
METRICS = (MEAN, RATIO)


def listeners(random, users, arm=None, more=0.0, share=0.0):
    """Users who differ, and keep to their ways. more: minutes an arm adds; share: wanted plays it adds"""
    arm = np.zeros(users) if arm is None else arm
    busy, keen = random.gamma(4, 1, users), random.beta(2, 8, users)
    plays = random.poisson(3 * busy) + 1
    before = random.poisson(3 * busy) + 1
    return {
        "plays": plays,
        "plays before": before,
        "wanted": random.binomial(plays, np.clip(keen + share * arm, 0, 1)),
        "wanted before": random.binomial(before, keen),
        "minutes": 3 * busy + random.gamma(2, 2, users) + more * arm,
        "minutes before": 3 * busy + random.gamma(2, 2, users),
    }


def run(seed, users=600, arms=2, more=0.0, share=0.0, **settings):
    random = np.random.default_rng(seed)
    arm = assign(range(users), f"run {seed}", np.ones(arms))
    table = listeners(random, users, arm, more, share)
    return analyse(table, arm, [f"arm {a}" for a in range(arms)], METRICS, **settings)


# ---- who sees what ------------------------------------------------------------------------------------------------


def test_a_user_keeps_the_arm_and_another_salt_deals_anew():
    names = [f"user {n}" for n in range(4000)]
    first = assign(names, "march", (1, 1, 1))
    assert np.array_equal(first, assign(names, "march", (1, 1, 1)))
    assert np.array_equal(first[:10], assign(names[:10], "march", (1, 1, 1)))  # whoever else there is
    other = assign(names, "april", (1, 1, 1))
    assert abs((first == other).mean() - 1 / 3) < 0.03  # 4 standard deviations


def test_arms_have_their_shares_whatever_the_salt():
    p = [sample_ratio(np.bincount(assign(range(1000), f"salt {s}", (1, 2, 1)), minlength=4)[:3], (1, 2, 1)).p_value for s in range(300)]  # fmt: skip
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09
    assert abs(np.mean(p) - 0.5) < 0.07


def test_places_are_even():
    found = places(range(20_000), "any")
    assert np.abs(np.sort(found) - (np.arange(20_000) + 0.5) / 20_000).max() < 0.014  # Kolmogorov, 0.1 %


def test_a_lost_arm_is_noticed():
    assert sample_ratio([1000, 1000]).p_value == 1
    assert not sample_ratio([1000, 1050]).wrong
    assert sample_ratio([1000, 1200]).wrong
    assert not sample_ratio([500, 1000], (1, 2)).wrong
    two = tt.SampleRatio(method="norm", correction=False).analyze(
        {0: tt.aggr.Aggregates(1000, {}, {}, {}), 1: tt.aggr.Aggregates(1090, {}, {}, {})}, 0, 1
    )
    assert sample_ratio([1000, 1090]).p_value == pytest.approx(two.pvalue)


# ---- by how much arms differ ------------------------------------------------------------------------------------------


def test_estimates_are_those_of_tea_tasting():
    import polars as pl

    random = np.random.default_rng(1)
    arm = assign(range(900), "x", (1, 1, 1))
    table = listeners(random, 900, arm, more=1.0)
    frame = pl.DataFrame({"arm": arm} | table)
    settings = {"use_t": True, "equal_var": False}
    theirs = tt.Experiment(
        minutes=tt.Mean("minutes", "minutes before", **settings),
        share=tt.RatioOfMeans("wanted", "plays", "wanted before", "plays before", **settings),
        plain=tt.Mean("minutes", **settings),
        variant="arm",
    ).analyze(frame, control=0, all_variants=True)
    ours = analyse(table, arm, ["a", "b", "c"], METRICS)
    plain = analyse(table, arm, ["a", "b", "c"], METRICS, cuped=False)
    for number, name in ((1, "b"), (2, "c")):
        for metric in ("minutes", "share"):
            said, e = theirs[0, number][metric], ours.of(name, metric)
            assert e.difference == pytest.approx((said.effect_size, said.effect_size_ci_lower, said.effect_size_ci_upper, said.pvalue))  # fmt: skip
            assert e.level == pytest.approx(said.treatment)
            assert e.difference.value / e.error == pytest.approx(said.statistic)
        said, e = theirs[0, number]["plain"], plain.of(name, "minutes")
        assert e.lift[:3] == pytest.approx(
            (said.rel_effect_size, said.rel_effect_size_ci_lower, said.rel_effect_size_ci_upper), rel=1e-3
        )
        assert e.variance == 1


def test_what_was_before_takes_out_what_made_users_differ():
    with_it, without = run(3, users=4000), run(3, users=4000, cuped=False)
    for metric in ("minutes", "share"):
        told, plain = with_it.of("arm 1", metric), without.of("arm 1", metric)
        assert told.variance == pytest.approx((told.error / plain.error) ** 2, rel=0.02)
        assert told.variance < 0.9


def test_holm_and_benjamini_hochberg_by_hand():
    p = [0.01, 0.04, 0.03, 0.5]
    estimates = [e._replace(difference=e.difference._replace(p_value=x)) for e, x in zip(run(0, arms=3).estimates, p, strict=True)]  # fmt: skip
    assert [e.adjusted for e in adjusted(estimates, "holm")] == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert [e.adjusted for e in adjusted(estimates, "bh")] == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert [e.adjusted for e in adjusted(estimates, "none")] == p


def test_a_metric_that_never_moves_tests_nothing():
    table = listeners(np.random.default_rng(0), 200)
    arm = assign(range(200), "x")
    found = analyse(table | {"minutes": np.full(200, 3.0)}, arm, ["a", "b"], METRICS)
    still, other = found.of("b", "minutes"), found.of("b", "share")
    assert still.difference.value == 0
    assert math.isnan(still.adjusted)
    assert other.adjusted == other.p_value  # one test is one test
    empty = analyse(table | {"plays": np.zeros(200)}, arm, ["a", "b"], [RATIO]).of("b", "share")
    assert math.isnan(empty.level)


# ---- how often it errs ------------------------------------------------------------------------------------------------


def rates(runs, **settings):
    """Of many experiments, by metric: how often something was found; and how often anything was, after correction."""
    found = [run(seed, **settings) for seed in range(runs)]
    alone = {m.name: np.mean([e.p_value < 0.05 for f in found for e in f.estimates if e.metric == m.name]) for m in METRICS}  # fmt: skip
    return alone, np.mean([any(e.adjusted < 0.05 for e in f.estimates) for f in found])


@pytest.mark.slow
def test_without_an_effect_five_in_a_hundred_find_one():
    alone, family = rates(300, users=300)
    for rate in (*alone.values(), family):
        assert 0.02 <= rate <= 0.09  # 5 % of 300 within 2.5 standard deviations


@pytest.mark.slow
def test_power_is_what_the_plan_said():
    table = listeners(np.random.default_rng(99), 20_000)
    said = plan(table, [MEAN], arms=2, users=600, correction="none")[0]
    level = table["minutes"].mean()
    alone, _ = rates(200, users=600, more=said.found * level)
    assert abs(alone["minutes"] - 0.8) < 0.085  # 3 standard deviations
    more = plan(table, [MEAN], arms=2, users=600, lift=said.found, correction="none")[0]
    assert more.needed == pytest.approx(600, rel=0.02)
    assert plan(table, METRICS, arms=3, users=600)[0].found > said.found  # fewer an arm, and four tests


@pytest.mark.slow
def test_a_large_lift_is_covered_with_a_covariate_and_tea_tastings_interval_is_not_what_it_says():
    """A covariate's mean comes from both arms: at a lift of 200 % its noise no longer cancels in the quotient."""
    truth, ours, theirs = 2.0, 0, 0
    runs = 300
    for seed in range(runs):
        random = np.random.default_rng(seed)
        arm = assign(range(400), f"run {seed}")
        before = random.gamma(2, 1, 400)
        table = {"minutes": (before + random.normal(5, 0.3, 400)) * np.where(arm == 1, 3, 1), "minutes before": before}
        e = analyse(table, arm, ["a", "b"], [MEAN]).of("b", "minutes")
        ours += e.lift.low <= truth <= e.lift.high
        parts = [tt_aggregates(table, arm == a) for a in (0, 1)]
        said = tt.Mean("minutes", "minutes before").analyze_aggregates(*parts)
        theirs += said.rel_effect_size_ci_lower <= truth <= said.rel_effect_size_ci_upper
    assert ours / runs > 0.92
    assert abs(theirs / runs - 0.95) > 0.03


def tt_aggregates(table, rows):
    y, x = table["minutes"][rows], table["minutes before"][rows]
    spread = np.cov(y, x)
    return tt.aggr.Aggregates(
        len(y),
        {"minutes": y.mean(), "minutes before": x.mean()},
        {"minutes": spread[0, 0], "minutes before": spread[1, 1]},
        {("minutes", "minutes before"): spread[0, 1]},
    )


# ---- looking again and again ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_looks_often_errs_often_unless_guarded():
    plain = guarded = 0
    runs, count = 120, 6
    for seed in range(runs):
        random = np.random.default_rng(seed)
        arm = assign(range(1600), f"run {seed}")
        table = listeners(random, 1600)
        seen = list(looks(table, arm, ["a", "b"], [MEAN], count, correction="none"))
        guarded += any(e.p_value < 0.05 for s in seen for e in s.estimates)
        z = [s.estimates[0].difference.value / s.estimates[0].error for s in seen]
        plain += any(abs(x) > 1.96 for x in z)
    assert plain / runs > 0.1
    assert guarded / runs < 0.05


def test_intervals_of_looks_agree_with_their_p_values():
    arm = assign(range(2000), "x")
    table = listeners(np.random.default_rng(0), 2000, arm, more=2.0)
    seen = list(looks(table, arm, ["a", "b"], METRICS, 4, correction="none"))
    assert [sum(s.ratio.users) for s in seen] == [500, 1000, 1500, 2000]
    widths = [s.of("b", "minutes").difference.high - s.of("b", "minutes").difference.low for s in seen]
    assert widths == sorted(widths, reverse=True)
    p = [s.of("b", "minutes").p_value for s in seen]
    assert p == sorted(p, reverse=True)
    for s in seen:
        e = s.of("b", "minutes")
        assert (e.difference.low > 0) == (e.p_value < 0.05)
        assert (e.lift.low > 0) == (e.difference.low > 0)
    plain = analyse(table, arm, ["a", "b"], METRICS).of("b", "minutes")
    assert widths[-1] / (plain.difference.high - plain.difference.low) == pytest.approx(sequential.width(1, 1) / 1.96, rel=0.01)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"salt": ""}, "`salt` must not be empty"),
        ({"shares": (1,)}, "`shares` must be a number above 0"),
        ({"shares": (1, 0)}, "`shares` must be a number above 0"),
        ({"correction": "tukey"}, "`correction` must be one of holm, bh, none"),
        ({"alpha": 2}, "`alpha` must lie between"),
        ({"arms": ["only"]}, "`arms` must name a control"),
        ({"count": 0}, "`looks` must be a whole number"),
        ({"count": 40}, "Look at most 2 times"),
        ({"arms": ["a", "b", "c"]}, "arm 'c' must have at least 2 users"),
    ],
)
def test_mistakes_are_named(change, says):
    given = {
        "salt": "s",
        "shares": (1, 1),
        "correction": "holm",
        "alpha": 0.05,
        "arms": ["a", "b"],
        "count": 1,
    } | change
    table = listeners(np.random.default_rng(0), 200)

    def tried():
        arm = assign(range(200), given["salt"], given["shares"])
        settings = {"alpha": given["alpha"], "correction": given["correction"]}
        return list(looks(table, arm, given["arms"], METRICS, given["count"], **settings))

    with pytest.raises(ValueError, match=says):
        tried()
