"""An audit says what direct computation says; bounds hold where their assumptions do, and where they do not that is told."""

import numpy as np
import pytest
import torch

import spdd
from spdd.data.worlds import GaussianWorld, MoodWorld
from spdd.decode import bounds
from spdd.decode.assumption import estimate_sigma, score_trace
from spdd.evaluate.audit import BINS, DEFAULT, audit
from spdd.evaluate.walks import Goal, walk

USERS, SLOTS = 120, 4


def histories(rows):
    return torch.arange(USERS)[rows]


def audited(world, *, value=None, floor=2.0, exclude=None, users=USERS, **settings):
    value = world.value.numpy() if value is None else value
    asked = lambda rows: (histories(rows), exclude)  # noqa: E731
    settings = {"slots": SLOTS, "rates": (0.3, 1.0), "scales": ("identity",), "close": 0, **settings}
    return audit(world, asked, users, [Goal("wanted", value, floor)], **settings)


@pytest.fixture(scope="module")
def gaussian():
    return audited(GaussianWorld(items=12, sigma=0.05))


@pytest.fixture(scope="module")
def tiny():
    """So small that all slates can be tried."""
    return audited(
        GaussianWorld(items=6, sigma=0.1, seed=3), users=25, close=25, slots=3, floor=1.5, value=np.linspace(0, 1, 6)
    )


def steps_on(found, scale):
    return next(s for s in found.steps if s.scale == scale)


def printed(found):
    return [c for c in found.cases if c.decoder != DEFAULT]


def test_assumption_holds_where_it_does_and_not_where_it_does_not(gaussian):
    assert steps_on(gaussian, "identity").holds
    mood = audited(MoodWorld(items=12), rates=(1.0,))
    assert not steps_on(mood, "identity").holds
    case = printed(mood)[0]
    assert [c.holds for c in case.moving.bounds[1].conditions if c.text == "Assumption 1"] == [False]
    assert [c.holds for c in printed(gaussian)[0].moving.bounds[1].conditions] == [True]


def test_sigma_is_that_of_the_scores_seen(gaussian):
    world = GaussianWorld(items=12, sigma=0.05)
    sigma = estimate_sigma(score_trace(world, torch.arange(USERS), slots=SLOTS))
    found = steps_on(gaussian, "identity")
    assert found.plain.value == pytest.approx(sigma.plain.mean().item())
    assert found.robust.value == pytest.approx(sigma.robust.mean().item())
    assert found.plain.low < 0.05 < found.plain.high
    assert found.noise.value == pytest.approx(bounds.noise_term(12, SLOTS, sigma.plain.mean().item(), 0.05))
    for sample in found.samples:
        assert sum(sample.share) == pytest.approx(1)
        assert len(sample.share) == len(BINS) - 1


def test_our_bounds_hold_where_the_assumptions_do(gaussian, tiny):
    for found in (gaussian, tiny):
        for case in printed(found):
            for reality in (case.shortfall, case.still, case.moving):
                ours = [b for b in reality.bounds if b.name.startswith("ours")]
                assert ours
                assert not any(b.exceeded > 0 for b in ours)


def test_numbers_equal_direct_computation(gaussian):
    world = GaussianWorld(items=12, sigma=0.05)
    decoder = spdd.SPDD(
        [spdd.Objective("wanted", world.value, at_least=2)], slots=SLOTS, scale="identity", start=1.0, rate=0.3, guard=False
    )  # fmt: skip
    first = world.logits(world.start(torch.arange(USERS)))
    still = decoder.rerank(first, trace=True)
    duals = torch.cat([still.trace.dual[:, :, 0], still.dual], 1)
    lost = bounds.certificate(first, world.value, slots=SLOTS, floor=2) - still.relevance.sum(1)
    case = printed(gaussian)[0]
    assert case.still.mean.value == pytest.approx(lost.mean().item(), abs=1e-7)
    assert case.still.largest == pytest.approx(lost.max().item())
    gained = world.value[still.items]
    said = {b.name: b for b in case.still.bounds}
    assert said["ours"].mean.value == pytest.approx(bounds.regret_bound(duals, gained, 0.5).mean().item())
    paper = bounds.regret_bound_paper(duals, gained, 0.5, rate=0.3)
    assert (said["paper"].mean.value, said["paper"].largest) == pytest.approx((paper.mean().item(), paper.max().item()))
    moved = decoder.generate(world, torch.arange(USERS))
    short = (2 - moved.gained[:, 0]).clamp(min=0)
    assert case.shortfall.mean.value == pytest.approx(short.mean().item())
    assert case.missed.value == pytest.approx((short > 0).double().mean().item())
    said = {b.name: b for b in case.shortfall.bounds}
    assert said["paper"].mean.value == pytest.approx(bounds.paper_violation_bound(0.3, 0.5, 1.0))


def test_small_worlds_are_judged_by_all_their_slates(tiny):
    for case in tiny.cases:
        assert np.isfinite(case.moving_exact.value)
        assert (
            case.moving_exact.value <= case.moving.mean.value + 1e-9
        )  # the steps of this world do not heed what is shown
        assert case.moving.mean.value < case.moving_exact.value + 0.1
        assert case.still_exact.value <= case.still.mean.value + 1e-9


def test_the_default_keeps_the_floor_and_loses_nothing_where_scores_stand_still(gaussian):
    case = next(c for c in gaussian.cases if c.decoder == DEFAULT)
    assert case.missed.value == 0
    assert case.still.largest < 1e-9
    assert not case.shortfall.bounds


def test_vacuous_bounds_are_called_so():
    """Prices that hardly move promise nothing, and a step too large for the proof is no promise of the paper's."""
    found = audited(GaussianWorld(items=12, sigma=0.05), rates=(0.01, 50.0), users=20)
    slow, fast = printed(found)
    assert slow.shortfall.bounds[0].vacuous == 1
    assert {b.name: b.vacuous for b in fast.still.bounds}["paper"] == 1
    assert [c.holds for c in fast.still.bounds[0].conditions if c.text.startswith("|rate")] == [False]
    assert np.isnan(fast.still.bounds[0].mean.value)


def test_the_batch_makes_no_difference(gaussian, monkeypatch):
    monkeypatch.setattr("spdd.evaluate.audit.NUMBERS", 7 * 12 * SLOTS)
    again = audited(GaussianWorld(items=12, sigma=0.05))
    for one, other in zip(gaussian.cases, again.cases, strict=True):
        assert one.still == other.still
        assert one.shortfall == other.shortfall


def test_users_whose_slates_cannot_be_are_left_out_and_told():
    world = GaussianWorld(items=12, sigma=0.05)
    exclude = torch.zeros(USERS, 12, dtype=torch.bool)
    exclude[:3, 2::3] = True  # nothing of value
    exclude[3, :10] = True  # fewer items than slots
    asked = lambda rows: (histories(rows), exclude[rows])  # noqa: E731
    found = audit(world, asked, 30, [Goal("wanted", world.value.numpy(), 2)], slots=SLOTS, rates=(1.0,), scales=("relative",), close=10)  # fmt: skip
    assert found.left_out == {"wanted >= 2": 4}
    assert {c.users for c in found.cases} == {26}
    assert {c.moving.users for c in found.cases} == {6}
    assert all(np.isfinite(c.moving.mean.value) for c in found.cases)


def test_excluded_items_are_nobody_s_best():
    """A hidden item that would be everybody's best changes nothing."""
    world = GaussianWorld(items=12, sigma=0.05)

    class Tempting:
        def start(self, histories):
            return world.start(histories)

        def logits(self, state):
            return torch.cat([world.logits(state), torch.full((len(state.scores), 1), 100.0)], 1)

        def advance(self, state, items):
            return world.advance(state, items)

    settings = {"slots": SLOTS, "rates": (1.0,), "scales": ("relative",), "close": 20}
    plain = audit(world, lambda rows: (histories(rows), None), 20, [Goal("w", world.value.numpy(), 2)], **settings)
    hidden = np.append(world.value.numpy(), 1.0)
    barred = torch.arange(13) == 12
    found = audit(Tempting(), lambda rows: (histories(rows), barred), 20, [Goal("w", hidden, 2)], **settings)
    for one, other in zip(plain.cases, found.cases, strict=True):
        assert one.still.mean.value == pytest.approx(other.still.mean.value)
        assert one.moving.mean.value == pytest.approx(other.moving.mean.value)
        assert one.moving_best.value == pytest.approx(other.moving_best.value)


def test_a_walk_remembers_what_it_was_chosen_from():
    world = GaussianWorld(items=12, sigma=0.05)
    seen = walk(spdd.Greedy(slots=SLOTS), world, torch.arange(5), None)
    assert torch.equal(seen.logits, score_trace(world, torch.arange(5), slots=SLOTS))
    assert torch.equal(seen.items[:, 0], seen.logits[:, 0].argmax(1))


class Proposing(GaussianWorld):
    def propose(self, state, count):
        raise AssertionError("asked")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"world": Proposing()}, "never scores all of them.*spdd slate"),
        ({"floor": 0.0}, "floor of 'wanted' must be above 0"),
        ({"floor": 40.0}, "no user can get 4 items that reach the floor 40"),
        ({"slots": 1}, "`slots` must be at least 2"),
        ({"slots": 13}, "must not exceed the 12 items"),
        ({"rates": (0.0,)}, "`rates` must be numbers above 0"),
        ({"scales": ("chance",)}, "`scale` must be one of"),
        ({"value": -np.ones(12)}, "finite and not negative"),
        ({"users": 0}, "a floor and a user at least"),
    ],
)
def test_wrong_input_is_refused(change, complaint):
    change = {"users": 5, **change}
    with pytest.raises(ValueError, match=complaint):
        audited(change.pop("world", GaussianWorld()), **change)
