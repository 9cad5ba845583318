"""The bandits: the Gini index, who gets which arm, what is learnt from feedback, and keeping it.

That their slates are proper slates is in test_contract.py.
"""

import inspect
import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import spdd
from spdd.decode.bandits import Rounds, check_arms, default_arms, gini

BOTH = [spdd.BanditUCB, spdd.BanditTS]
MEANS = np.array([0.3, 0.4, 0.5, 0.55, 0.8, 0.45])  # of the six default arms; the fifth is the best


@pytest.fixture
def new():
    return spdd.Objective("new", value=[0, 1, 0, 1, 1, 0, 0.5, 0])


@pytest.fixture
def rows():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


# ---- the index -------------------------------------------------------------------------------------------


def naive_gini(criteria, weights):
    return sum(w * x for w, x in zip(weights, sorted(criteria), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gini_weighs_from_worst_to_best(size):
    random = np.random.default_rng(size)
    criteria = random.integers(0, 4, (size, 50)) / 3  # with ties
    weights = sorted(random.dirichlet(np.ones(size)), reverse=True)
    want = [naive_gini(column, weights) for column in criteria.T]
    np.testing.assert_allclose(gini(list(criteria), weights), want, atol=1e-15)


def test_gini_of_even_weights_is_the_mean_and_of_one_weight_the_worst():
    criteria = torch.rand(3, 20, dtype=torch.float64)
    torch.testing.assert_close(gini(criteria, [1 / 3] * 3), criteria.mean(0))
    torch.testing.assert_close(gini(criteria, [1, 0, 0]), criteria.amin(0))


@pytest.mark.parametrize("bandit", BOTH)
def test_slots_go_to_the_largest_index(bandit, rows):
    """Against the formula, item by item: relevance p / max p, values over the largest, an arm's weights."""
    first, second = [0, 2, 1, 4, 0, 0, 3, 1], [1, 0, 0.5, 0, 1, 0.25, 0, 0]
    arms = [[1, 0, 0], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]]
    decoder = bandit([spdd.Objective("first", first), spdd.Objective("second", second)], slots=5, arms=arms)
    slate = decoder.rerank(rows)
    for row, arm, items in zip(rows.double(), slate.arm.tolist(), slate.items.tolist(), strict=True):
        relevance = (row - row.max()).exp().tolist()
        criteria = [(r, a / 4, b) for r, a, b in zip(relevance, first, second, strict=True)]
        # Items of equal index, here those with a 0 under the weights (1, 0, 0), go by the mean of all criteria.
        index = [(round(naive_gini(c, arms[arm]), 9), sum(c)) for c in criteria]
        want = sorted(range(8), key=lambda j: index[j], reverse=True)[:5]
        assert items == want


def test_items_of_equal_value_are_ordered_by_relevance_whatever_the_weights():
    """Weights (1, 0) alone would leave all items without value level."""
    decoder = spdd.BanditUCB([spdd.Objective("new", [0, 0, 0, 1])], slots=4, arms=[[1, 0]])
    assert decoder.rerank(np.array([[0.1, 0.3, 0.2, -1.0]])).items.tolist() == [[3, 1, 2, 0]]


def test_weights_that_count_the_worst_more_favour_balanced_items():
    """One item is only relevant, one only valuable, one is a bit of both."""
    objective = spdd.Objective("worth", [0.0, 1.0, 0.45])
    logits = np.log([[1.0, 0.01, 0.45]])
    even, worst = (
        spdd.BanditUCB([objective], slots=1, arms=[arm]).rerank(logits).items for arm in ([0.5, 0.5], [1, 0])
    )
    assert even.tolist() == [[1]]
    assert worst.tolist() == [[2]]


def test_dual_is_the_worst_off_weight_per_unit_of_value(rows):
    decoder = spdd.BanditUCB([spdd.Objective("stars", [1, 2, 3, 4, 5, 1, 1, 1])], slots=3, arms=[[0.75, 0.25]])
    np.testing.assert_allclose(decoder.rerank(rows).dual, 0.75 / 5, rtol=1e-5)


def test_values_all_zero_leave_plain_decoding(rows):
    slate = spdd.BanditTS([spdd.Objective("none", [0.0] * 8)], slots=8).rerank(rows)
    assert torch.equal(slate.items, rows.argsort(descending=True))
    assert torch.all(slate.dual == 0)


# ---- arms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criteria", [2, 3, 4, 6])
def test_default_arms_are_a_small_grid_of_gini_weights(criteria):
    arms = np.array(default_arms(criteria))
    assert check_arms(arms, criteria) == default_arms(criteria)
    assert len(np.unique(arms, axis=0)) == len(arms) <= 21
    for extreme in ([1 / criteria] * criteria, [1] + [0] * (criteria - 1)):
        assert np.any(np.all(np.isclose(arms, extreme), axis=1))


@pytest.mark.parametrize(
    ("arms", "complaint"),
    [
        ([0.5, 0.5], r"shape \(arms, 2\), a weight for each of relevance and 1 objective, got \(2,\)"),
        ([[0.5, 0.3, 0.2]], r"shape \(arms, 2\)"),
        (np.zeros((0, 2)), r"got \(0, 2\)"),
        ([[0.6, 0.4], [0.4, 0.6]], r"non-increasing .* got \[0.4, 0.6\] as arm 1"),
        ([[1.5, -0.5]], "non-negative"),
        ([[0.5, 0.4]], "sum to 1"),
        ([[math.nan, 0.5]], r"got \[nan, 0.5\]"),
        ("grid", "matrix of numbers"),
    ],
)
def test_weights_that_are_no_gini_weights_are_refused(new, arms, complaint):
    with pytest.raises((TypeError, ValueError), match=complaint):
        spdd.BanditUCB([new], arms=arms)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"objectives": []}, "at least one objective"),
        ({"scale": "logit"}, r"relative, probability, sigmoid, got 'logit'"),
        ({"seed": -1}, r"`seed` must be a whole number of at least 0, got -1"),
        ({"seed": 0.5}, r"got 0\.5"),
        ({"exploration": math.inf}, "`exploration` must be a number, finite"),
    ],
)
def test_settings_that_make_no_bandit_are_refused(new, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        spdd.BanditUCB(**{"objectives": [new], **given})


# ---- drawing ---------------------------------------------------------------------------------------------


def one_by_one(rounds, rows, exploration):
    """UCB1 row by row, every pull counted at once; t is the number of slates after the batch."""
    drawn = np.array(rounds.drawn, dtype=float)
    total = drawn.sum() + rows
    average = sum(rounds.reward) / sum(rounds.heard) if sum(rounds.heard) else 0.5
    mean = [r / h if h else average for r, h in zip(rounds.reward, rounds.heard, strict=True)]
    arms = []
    for _ in range(rows):
        bound = [
            math.inf if n == 0 else m + math.sqrt(exploration * math.log(total) / n)
            for m, n in zip(mean, drawn, strict=True)
        ]
        arms.append(int(np.argmax(bound)))
        drawn[arms[-1]] += 1
    return arms


@pytest.mark.parametrize("exploration", [0.0, 0.3, 2.0])
def test_a_batch_of_ucb_is_row_by_row_ucb_with_pending_pulls(new, exploration):
    random = np.random.default_rng(0)
    decoder = spdd.BanditUCB([new], slots=1, exploration=exploration)
    for size in (1, 1, 3, 20, 2, 50):
        want = one_by_one(decoder.rounds, size, exploration)
        slate = decoder.rerank(random.normal(size=(size, 8)))
        assert sorted(slate.arm.tolist()) == sorted(want)
        if size != 3:  # one batch whose feedback never comes
            decoder.learn(slate, (random.random(size) + MEANS[slate.arm]) / 2)


@pytest.mark.parametrize("bandit", BOTH)
def test_no_arm_always_gets_the_first_rows(bandit, new, rows):
    """Rows may come sorted, by activity say; then an arm with the first rows would be judged by other users."""
    seen = set()
    for seed in range(40):
        seen.add(int(bandit([new], slots=1, seed=seed).rerank(rows.repeat(3, 1)).arm[0]))
    assert seen == set(range(6))


@pytest.mark.parametrize("bandit", BOTH)
def test_same_seed_same_slates(bandit, new, rows):
    def story(seed):
        decoder = bandit([new], slots=3, seed=seed)
        slates = [decoder.rerank(rows.repeat(5, 1)) for _ in range(2)]
        decoder.learn(slates[1], torch.full((20,), 0.5))
        return [s.arm.tolist() for s in [*slates, decoder.rerank(rows)]]

    assert story(1) == story(1)
    assert story(1) != story(2)


@pytest.mark.parametrize("bandit", BOTH)
def test_slates_are_made_before_their_rewards_exist(bandit, new, rows):
    """`rerank` has nowhere to put labels, and rewards reach only the batches after them."""
    assert not {"reward", "rewards", "labels"} & inspect.signature(bandit.rerank).parameters.keys()
    good, bad = bandit([new], slots=3), bandit([new], slots=3)
    first, other = good.rerank(rows.repeat(10, 1)), bad.rerank(rows.repeat(10, 1))
    assert torch.equal(first.items, other.items)
    good.learn(first, torch.ones(40))
    bad.learn(other, torch.zeros(40))
    assert torch.equal(first.items, other.items)


@pytest.mark.parametrize("bandit", BOTH)
def test_a_batch_that_fails_was_never_drawn(bandit, new):
    broken = iter([torch.zeros(3, 8), torch.full((3, 8), torch.nan)])
    decoder = bandit([new], slots=2)
    before = decoder.rounds
    with pytest.raises(ValueError, match="nan"):
        decoder.generate(spdd.FromCallable(lambda histories: next(broken)), [[]] * 3)
    assert decoder.rounds == before


# ---- learning --------------------------------------------------------------------------------------------


def play(decoder, batches, rows, random, noise):
    """Arms drawn (batches, rows) in a world where arm a is worth MEANS[a] on average."""
    logits, drawn = random.normal(size=(rows, 8)), []
    for _ in range(batches):
        slate = decoder.rerank(logits)
        drawn.append(slate.arm)
        decoder.learn(slate, noise(random, MEANS[slate.arm]))
    return np.array(drawn)


def coins(random, mean):
    return (random.random(len(mean)) < mean).astype(float)


def fractions(random, mean):
    return random.beta(4 * mean, 4 * (1 - mean))


@pytest.mark.parametrize("bandit", BOTH)
@pytest.mark.parametrize("noise", [coins, fractions])
def test_the_best_arm_is_found_and_regret_flattens(bandit, noise, new):
    shares, growth = [], []
    for seed in range(3):
        decoder = bandit([new], slots=1, seed=seed)
        drawn = play(decoder, 160, 25, np.random.default_rng(seed), noise)
        shares.append((drawn[-40:] == 4).mean())
        regret = np.cumsum((MEANS.max() - MEANS[drawn]).sum(1))
        growth.append(regret[159] / regret[39])
        assert sum(decoder.rounds.heard) == 160 * 25
    assert np.mean(shares) > 0.8
    assert np.mean(growth) < 2.5  # four times the rounds; an arm drawn at random would make it 4


@pytest.mark.parametrize("bandit", BOTH)
def test_feedback_may_come_late(bandit, new):
    """Ten batches are served before the first is heard of."""
    decoder, random = bandit([new], slots=1), np.random.default_rng(1)
    waiting, drawn = [], []
    for _ in range(200):
        waiting.append(decoder.rerank(random.normal(size=(20, 8))))
        drawn.append(waiting[-1].arm)
        if len(waiting) > 10:
            slate = waiting.pop(0)
            decoder.learn(slate, coins(random, MEANS[slate.arm]))
    assert (np.array(drawn[-40:]) == 4).mean() > 0.7
    assert sum(decoder.rounds.drawn) - sum(decoder.rounds.heard) == 10 * 20


def test_fractional_rewards_are_counted_as_coins(new):
    """So that a Beta posterior's alpha and beta stay counts, and their mean is right."""
    decoder = spdd.BanditTS([new], slots=1, arms=[[0.5, 0.5]])
    slate = decoder.rerank(np.zeros((4000, 8)))
    decoder.learn(slate, np.full(4000, 0.3))
    reward = decoder.rounds.reward[0]
    assert reward == int(reward)
    assert abs(reward / 4000 - 0.3) < 4 * math.sqrt(0.21 / 4000)


def test_thompson_draws_an_arm_as_often_as_it_is_the_best_under_the_posterior(new):
    decoder = spdd.BanditTS([new], slots=1, arms=[[0.5, 0.5], [0.75, 0.25]])
    decoder.rounds = Rounds(drawn=(10, 6), heard=(10, 4), reward=(6.0, 2.0))
    beta = stats.beta(7, 5)
    x = np.linspace(0, 1, 20_001)
    want = np.trapezoid(beta.pdf(x) * stats.beta(3, 3).cdf(x), x)
    share = (decoder.rerank(np.zeros((20_000, 8))).arm == 0).mean()
    assert abs(share - want) < 4 * math.sqrt(0.25 / 20_000)


def test_rewards_of_ucb_are_added_up_as_they_are(new):
    decoder = spdd.BanditUCB([new], slots=1)
    slate = decoder.rerank(np.zeros((6, 8)))
    decoder.learn(slate, [0.125, 0.25, 0.5, 1, 0, 0.75])
    assert sum(decoder.rounds.reward) == 2.625
    assert decoder.rounds.drawn == decoder.rounds.heard == (1,) * 6


def test_slates_of_another_process_count_as_drawn(new, rows):
    served = spdd.BanditUCB([new], slots=1).rerank(rows)
    decoder = spdd.BanditUCB([new], slots=1)
    decoder.learn(served, [0.5] * 4)
    decoder.learn(served.numpy(), torch.tensor([0.5] * 4))
    assert decoder.rounds.drawn == decoder.rounds.heard
    assert sum(decoder.rounds.heard) == 8


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ([0.5, 1.5, 0, 0], r"`reward` must lie in \[0, 1\], got 1\.5 for row 1"),
        ([0.5, 0, -0.1, 0], r"got -0\.1 for row 2"),
        ([0.5, 0, 0, math.nan], "got nan for row 3"),
        ([0.5, 0], r"one number per row: 4 rows, got shape \(2,\)"),
        (0.5, r"got shape \(\)"),
        (torch.zeros(4, 1), r"got shape \(4, 1\)"),
        (["a", "b", "c", "d"], "numbers in"),
    ],
)
@pytest.mark.parametrize("bandit", BOTH)
def test_rewards_that_are_none_are_refused_and_teach_nothing(bandit, new, rows, reward, complaint):
    decoder = bandit([new], slots=2)
    slate = decoder.rerank(rows)
    before = decoder.rounds
    with pytest.raises((TypeError, ValueError), match=complaint):
        decoder.learn(slate, reward)
    assert decoder.rounds == before


def test_slates_no_bandit_drew_are_refused(new, rows):
    decoder = spdd.BanditUCB([new], slots=2, arms=[[1, 0], [0.5, 0.5]])
    with pytest.raises(TypeError, match=r"must be one a bandit drew"):
        decoder.learn(spdd.Greedy(slots=2).rerank(rows), [0] * 4)
    slate = decoder.rerank(rows)
    with pytest.raises(ValueError, match=r"must lie in 0 to 1, got \d to 7"):
        decoder.learn(replace(slate, arm=torch.tensor([0, 1, 7, 1])), [0] * 4)


# ---- keeping it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bandit", BOTH)
def test_a_saved_bandit_goes_on_as_if_nothing_had_happened(bandit, new, tmp_path):
    decoder, random = bandit([new], slots=2, seed=5), np.random.default_rng(2)
    for noise in itertools.islice(itertools.cycle([coins, fractions]), 6):
        play(decoder, 1, 15, random, noise)
    decoder.rerank(np.zeros((7, 8)))  # one batch not heard of
    decoder.save(tmp_path / "state.json")
    again = bandit([new], slots=2, seed=5).load(tmp_path / "state.json")
    assert again.rounds == decoder.rounds
    ours, theirs = (play(d, 5, 15, np.random.default_rng(9), fractions) for d in (decoder, again))
    assert np.array_equal(ours, theirs)
    assert again.rounds == decoder.rounds


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (lambda new: spdd.BanditTS([new]), "its decoder is BanditUCB, this decoder's is BanditTS"),
        (lambda new: spdd.BanditUCB([spdd.Objective("old", [1] * 8)]), r"its objectives is \['new'\]"),
        (lambda new: spdd.BanditUCB([new], arms=[[1, 0]]), "its arms is"),
        (lambda new: spdd.BanditUCB([new], seed=1), "its seed is 0, this decoder's is 1"),
    ],
)
def test_the_state_of_another_bandit_is_refused(new, tmp_path, other, complaint):
    spdd.BanditUCB([new]).save(tmp_path / "state.json")
    with pytest.raises(ValueError, match=complaint):
        other(new).load(tmp_path / "state.json")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda found: "", "cannot be read"),
        (lambda found: json.dumps(found)[:-20], "cannot be read"),
        (lambda found: "[]", "not a bandit state"),
        (lambda found: json.dumps({**found, "kind": "spdd traffic"}), "not a bandit state"),
        (lambda found: json.dumps({**found, "version": 2}), "not a bandit state"),
        (lambda found: json.dumps({**found, "drawn": [1]}), "one entry for each of its 6 arms"),
        (lambda found: json.dumps({**found, "reward": [9.0] * 6}), "more reward than slates"),
        (lambda found: json.dumps({**found, "heard": [9] * 6}), "more heard of than drawn"),
        (lambda found: json.dumps({**found, "reward": [math.nan] * 6}), "more reward than slates"),
        (lambda found: json.dumps({**found, "drawn": [1.5] * 6}), "not a number"),
        (lambda found: json.dumps({**found, "drawn": "999999"}), "not a number"),
        (lambda found: json.dumps({**found, "extra": 1}), "extra"),
        (lambda found: json.dumps({k: v for k, v in found.items() if k != "arms"}), "it has no 'arms'"),
        (lambda found: json.dumps({k: v for k, v in found.items() if k != "heard"}), "heard"),
    ],
)
def test_a_broken_file_is_refused_and_changes_nothing(new, tmp_path, damage, complaint):
    path = tmp_path / "state.json"
    decoder = spdd.BanditUCB([new], slots=2)
    decoder.learn(decoder.rerank(np.zeros((6, 8))), [0.5] * 6)
    decoder.save(path)
    path.write_text(damage(json.loads(path.read_text())))
    before = decoder.rounds
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{complaint}"):
        decoder.load(path)
    assert decoder.rounds == before
