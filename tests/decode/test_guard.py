"""The guard against exhaustive search: a row that can keep its targets keeps them; one that cannot says so."""

import itertools

import numpy as np
import pytest

import spdd

ROWS = 20
FORMS = ("floor", "cap", "both", "disjoint", "overlapping")
KINDS = ("0/1", "integer", "real")


def instance(rng, form, kind):
    """Scores, eligibility, objectives, and floors and caps as arrays."""
    items, slots = int(rng.integers(4, 13)), int(rng.integers(1, 6))
    count = 1 if form in ("floor", "cap", "both") else int(rng.integers(2, 4))
    value = {
        "0/1": lambda: rng.integers(0, 2, (count, items)).astype(float),
        "integer": lambda: rng.integers(0, 5, (count, items)).astype(float),
        "real": lambda: rng.random((count, items)),
    }[kind]()
    if form == "disjoint":
        group = rng.integers(0, count + 1, items)
        least = 0.05 if kind == "real" else 1.0
        value = np.where(group[None] == np.arange(count)[:, None], np.maximum(value, least), 0)
    eligible = rng.random((ROWS, items)) < 0.85
    eligible[~eligible.any(1), 0] = True
    floor, cap, objectives = np.full(count, -np.inf), np.full(count, np.inf), []
    for c in range(count):
        most = np.sort(value[c])[::-1][:slots].sum()
        side = form if count == 1 else rng.choice(["floor", "cap", "both"])
        draw = (
            (lambda m: float(rng.uniform(0, m * 1.1)))
            if kind == "real"
            else (lambda m: float(rng.integers(0, int(m) + 2)))
        )
        low, high = sorted((draw(most), draw(most)))
        if side != "cap":
            floor[c] = low if count == 1 or kind != "real" else low / count
        if side != "floor":
            cap[c] = high
        objectives.append(
            spdd.Objective(
                f"objective {c}",
                value[c],
                at_least=None if np.isinf(floor[c]) else floor[c],
                at_most=None if np.isinf(cap[c]) else cap[c],
            )
        )
    return rng.random((ROWS, items)), eligible, objectives, value, slots, floor, cap


def every_slate(relevance, value, eligible, slots, floor, cap):
    """Whether some slate is feasible, the best one's relevance, and all sums (C, S)."""
    items = np.flatnonzero(eligible)
    slates = np.array(list(itertools.combinations(items, min(slots, len(items)))))
    sums = value[:, slates].sum(2)
    low, high = (np.where(np.isinf(t), t, t * (1 - s * 1e-6)) for t, s in ((floor, 1), (cap, -1)))
    feasible = ((sums >= low[:, None]) & (sums <= high[:, None])).all(0)
    total = relevance[slates].sum(1)
    return feasible.any(), total[feasible].max() if feasible.any() else None, sums


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_no_row_is_short_that_could_have_been_met(form, kind):
    """10,000 rows in all; overlapping objectives are counted too, though only the others are promised."""
    rng = np.random.default_rng([FORMS.index(form), KINDS.index(kind)])
    regrets, short = [], 0
    for _ in range(34):
        relevance, eligible, objectives, value, slots, floor, cap = instance(rng, form, kind)
        decoder = spdd.SPDD(objectives, slots=slots, scale="identity")
        slate = decoder.rerank(relevance, exclude=~eligible)
        for row in range(ROWS):
            feasible, best, sums = every_slate(relevance[row], value, eligible[row], slots, floor, cap)
            status = slate.status[row]
            if feasible:
                assert status != spdd.IMPOSSIBLE
                short += status == spdd.SHORT
                regrets.append((best - np.nansum(slate.relevance[row])) / best)
                continue
            assert status == spdd.IMPOSSIBLE
            if len(value) == 1:  # what is said to be reachable is the truth, and is what the slate got
                under = sums[0][sums[0] <= cap[0] + 1e-9]
                truth = {"floor": sums[0].max(), "cap": sums[0].min()}.get(
                    form, under.max() if len(under) else sums[0].min()
                )
                assert slate.reachable[row, 0] == pytest.approx(truth, abs=1e-6)
                assert slate.gained[row, 0] == pytest.approx(truth, abs=1e-6)
    assert short == 0
    assert np.mean(regrets) < 0.03  # tiny worlds; see test_optimum for slates of ordinary size


@pytest.mark.parametrize("form", ["floor", "both", "overlapping"])
def test_the_guard_holds_whatever_the_model_says_next(form):
    """Autoregressive, with scores that are drawn anew after every choice."""

    class Fickle:
        def start(self, histories):
            self.rng = np.random.default_rng(0)
            return 0

        def logits(self, state):
            import torch

            return torch.as_tensor(self.rng.normal(size=(ROWS, self.items)) * 5)

        def advance(self, state, items):
            return state + 1

    rng = np.random.default_rng(7)
    for kind in KINDS:
        for _ in range(10):
            _, eligible, objectives, value, slots, floor, cap = instance(rng, form, kind)
            model = Fickle()
            model.items = value.shape[1]
            slate = spdd.SPDD(objectives, slots=slots).generate(model, [[]] * ROWS, exclude=~eligible)
            for row in range(ROWS):
                feasible, _, _ = every_slate(np.zeros(value.shape[1]), value, eligible[row], slots, floor, cap)
                assert int(slate.status[row]) == (spdd.MET if feasible else spdd.IMPOSSIBLE)


def test_without_the_guard_rows_do_end_short():
    """The check above can fail: the same instances without a guard leave rows short."""
    rng = np.random.default_rng(3)
    short = 0
    for _ in range(20):
        relevance, eligible, objectives, _, slots, _, _ = instance(rng, "floor", "0/1")
        decoder = spdd.SPDD(objectives, slots=slots, scale="identity", start=1e-3, rate=0.0, guard=False)
        short += int((decoder.rerank(relevance, exclude=~eligible).status == spdd.SHORT).sum())
    assert short > 20


def test_what_becomes_of_a_row_does_not_depend_on_its_batch():
    """Rows whose targets only the exact solver settles, or gives up on: the same alone and among many of their kind."""
    rng = np.random.default_rng(5)
    value = rng.random((12, 30))
    target = np.sort(value, 1)[:, -5:].sum(1) * rng.uniform(0.5, 0.9, 12)
    window = {"at_least": target - 1e-7, "at_most": target + 1e-7}
    scores = rng.random((12, 30))
    together = spdd.SPDD([spdd.Objective("exactly", value, **window)], slots=5).rerank(scores)
    for row in range(0, 12, 3):
        one = {word: t[row] for word, t in window.items()}
        alone = spdd.SPDD([spdd.Objective("exactly", value[row], **one)], slots=5).rerank(scores[row : row + 1])
        assert alone.status[0] == together.status[row]
        np.testing.assert_array_equal(alone.items[0], together.items[row])


@pytest.mark.parametrize("unit", [1e-9, 1e-7, 1e-3, 1.0, 1e6, 1e9])
def test_statuses_do_not_depend_on_the_unit(unit):
    """A target is missed by its own measure: values of 1e-7 are not all met because they are small."""
    short = spdd.SPDD([spdd.Objective("x", np.full(9, unit), at_least=6 * unit)], slots=5)
    assert short.rerank(np.random.default_rng(0).random((1, 9))).status[0] == spdd.IMPOSSIBLE
    over = spdd.SPDD([spdd.Objective("x", np.full(9, unit), at_most=4 * unit)], slots=5)
    assert over.rerank(np.random.default_rng(0).random((1, 9))).status[0] == spdd.IMPOSSIBLE
    missed = spdd.Greedy([spdd.Objective("x", np.arange(9) * unit, at_least=11 * unit)], slots=5)
    assert missed.rerank(-np.arange(9.0)[None]).status[0] == spdd.SHORT
    for form in FORMS:
        for kind in KINDS:
            relevance, eligible, objectives, value, slots, _, _ = instance(np.random.default_rng(11), form, kind)

            def slates(unit):
                parts = zip(objectives, value, strict=True)  # noqa: B023
                scaled = [
                    spdd.Objective(
                        o.name,
                        v * unit,
                        at_least=None if o.at_least is None else o.at_least * unit,
                        at_most=None if o.at_most is None else o.at_most * unit,
                    )
                    for o, v in parts
                ]
                return spdd.SPDD(scaled, slots=slots).rerank(relevance, exclude=~eligible)  # noqa: B023

            made, plain = slates(unit), slates(1.0)
            np.testing.assert_array_equal(made.status, plain.status)
            np.testing.assert_allclose(made.reachable, plain.reachable * unit, rtol=1e-5)


def test_a_row_that_is_not_settled_in_time_is_never_called_impossible(monkeypatch):
    """Sums in a narrow window are a knapsack: with no time for the exact solver such rows may end SHORT, and say so."""
    from spdd.decode import guard

    rng = np.random.default_rng(0)
    value = rng.random(40)
    target = value[rng.permutation(40)[:5]].sum()
    window = {"at_least": target - 1e-5, "at_most": target + 1e-5}
    decoder = spdd.SPDD([spdd.Objective("exactly", value, **window)], slots=5)
    scores = rng.random((4, 40))
    monkeypatch.setattr(guard, "NODES", 0)
    assert set(decoder.rerank(scores).status.tolist()) <= {spdd.MET, spdd.SHORT}
    monkeypatch.setattr(guard, "NODES", 10**6)
    assert (decoder.rerank(scores).status == spdd.MET).all()
