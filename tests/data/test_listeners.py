"""The listener world does what it says, answers alike in any batch, and its logs hold what models can learn."""

import numpy as np
import pytest
import torch

import spdd
from spdd.data.listeners import PLAYED, SKIPPED, ListenerWorld

SMALL = ListenerWorld(users=300, items=200, seed=3)


def bests(world, users, slots=10):
    visit = world.visit(users)
    return visit, world.logits(world.start(visit)).topk(slots).indices


def test_answers_are_the_same_in_any_batch_and_with_the_same_seed():
    visit, slates = bests(SMALL, torch.arange(60))
    together = SMALL.respond(visit, slates, seed=5)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    again = ListenerWorld(users=300, items=200, seed=3)
    shuffled = again.respond(again.visit(order), slates[order], seed=5)
    for one, two in zip(together, shuffled, strict=True):
        assert torch.equal(one[order], two)
    alone = SMALL.respond(SMALL.visit([7]), slates[7:8], seed=5)
    assert torch.equal(alone.minutes[0], together.minutes[7])
    assert not torch.equal(SMALL.respond(visit, slates, seed=6).played, together.played)


def test_expected_is_what_sampling_comes_to():
    visit, slates = bests(SMALL, torch.arange(40), slots=6)
    expected = SMALL.expect(visit, slates, draws=256)
    sampled = [SMALL.respond(visit, slates, seed=10_000 + day) for day in range(800)]
    for name, tolerance in (("looked", 0.08), ("played", 0.08), ("skipped", 0.08)):
        mean = torch.stack([getattr(day, name) for day in sampled]).mean(0)
        assert (mean - getattr(expected, name)).abs().max() < tolerance, name
        assert (mean - getattr(expected, name)).mean().abs() < 0.004, name
    minutes = torch.stack([day.minutes for day in sampled]).mean(0)
    assert minutes.sum() == pytest.approx(float(expected.minutes.sum()), rel=0.02)


def test_first_slot_is_exact_and_attention_wanes():
    visit, slates = bests(SMALL, torch.arange(50))
    expected = SMALL.expect(visit, slates, draws=4)
    truth = SMALL.logits(SMALL.start(visit)).gather(1, slates[:, :1]).sigmoid()[:, 0]
    torch.testing.assert_close(expected.played[:, 0], truth)
    torch.testing.assert_close(expected.looked[0], 0.92 ** torch.arange(10, dtype=torch.float64))
    torch.testing.assert_close(expected.played + expected.skipped, expected.looked)


def test_mood_follows_what_is_played_and_not_what_is_skipped():
    visit = SMALL.visit([0])
    other = int(torch.argmin(SMALL.vectors @ SMALL.tastes[0]))
    before = SMALL.logits(SMALL.start(visit))[0, other]
    after = SMALL.logits(SMALL.start(SMALL.visit([0], [[other, other]])))[0, other]
    assert after > before + 1
    frozen = ListenerWorld(users=300, items=200, seed=3, pull=0.0)
    assert torch.equal(frozen.mood(frozen.visit([0], [[other]])), frozen.mood(frozen.visit([0])))


def test_empty_slots_and_empty_slates():
    visit = SMALL.visit([1, 2], [[3], []])
    answer = SMALL.respond(visit, [[4, -1, 5], [-1, -1, -1]])
    assert answer.looked[0, 1] == answer.minutes[1].sum() == answer.looked[1].sum() == 0
    assert SMALL.respond(visit, torch.empty(2, 0)).played.shape == (2, 0)
    assert visit.__array__().tolist() == [[3], [-1]]


def test_the_oracle_serves_better_slates_than_fame_and_fits_the_decoder():
    visit = SMALL.visit(torch.arange(100))
    log = SMALL.log(sessions=3)
    played = np.bincount(log.item[log.extra["action"] == PLAYED], minlength=200)
    fame = torch.as_tensor(played).topk(10).indices.expand(100, 10)
    slates = spdd.Greedy(slots=10).generate(SMALL, visit).items
    assert SMALL.expect(visit, slates).played.sum(1).mean() > 1.3 * SMALL.expect(visit, fame).played.sum(1).mean()
    seen = SMALL.visit([4], [slates[4].tolist()])
    assert not set(spdd.Greedy(slots=10).generate(SMALL, seen, exclude="seen").items[0].tolist()) & set(
        slates[4].tolist()
    )


def test_logs_are_repeatable_ordered_and_biased_against_new_creators():
    log, again = SMALL.log(), ListenerWorld(users=300, items=200, seed=3).log()
    assert len(log) == 300
    for one, two in (
        (log.item, again.item),
        (log.time, again.time),
        *((log.extra[k], again.extra[k]) for k in again.extra),
    ):
        assert np.array_equal(one, two)
    assert not np.array_equal(log.item[:500], ListenerWorld(users=300, items=200, seed=4).log().item[:500])
    assert (np.diff(log.time)[np.diff(log.rows()) == 0] >= 0).all()
    assert set(np.unique(log.extra["action"])) == {SKIPPED, PLAYED}
    assert ((log.extra["minutes"] > 0) == (log.extra["action"] == PLAYED)).all()
    new = SMALL.catalog.attributes["new_creator"]
    assert new[log.item].mean() < 0.6 * new.mean()


def test_the_log_as_tables():
    pytest.importorskip("polars")
    tables, log = SMALL.interactions(sessions=2), SMALL.log(sessions=2)
    assert tables.events.columns == ["user", "item", "time", "action", "minutes", "slot", "session"]
    assert tables.events["item"].to_list() == SMALL.catalog.id[log.item].tolist()
    assert set(tables.items.columns) == {"item", "genre", "provider", "new_creator", "minutes"}
    assert tables.report.kept == len(tables.events)


def test_a_full_world_is_ready_in_seconds():
    world = ListenerWorld()
    log = world.log(sessions=2)
    assert len(log) == 2000
    assert len(world.catalog.id) == 2000
    assert len(log.item) > 20_000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ListenerWorld(users=0), "`users`"),
        (lambda: ListenerWorld(pull=1.5), "`pull`"),
        (lambda: SMALL.visit([300]), "`users` must name listeners from 0 to 299"),
        (lambda: SMALL.visit([1], [[1], [2]]), "`played`"),
        (lambda: SMALL.log(slots=201), "`slots`"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
