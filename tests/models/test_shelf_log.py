"""What a ranker of shelves knows of items at each moment: nothing that tells the label it is about to predict."""

import numpy as np
import pytest

from spdd.data.interactions import Items, Sequences, Split
from spdd.models.shelf_log import rates, shelf_log, with_rates

PEOPLE, ITEMS, DAY = 12, 6, 24 * 3_600_000


def part(random, first_day, days, each):
    """`each` impressions a person, of random items, on random days from `first_day` on."""
    events = PEOPLE * each
    time = np.sort(random.integers(first_day * DAY, (first_day + days) * DAY, (PEOPLE, each)), axis=1).ravel()
    extra = {
        "action": random.integers(1, 4, events),
        "surface": random.integers(0, 2, events),
        "is_click": random.choice([0, 1, -1], events, p=[0.5, 0.3, 0.2]),
        "long_view": random.choice([0, 1, -1], events, p=[0.6, 0.2, 0.2]),
    }
    item = random.integers(-1, ITEMS, events)
    return Sequences(np.array([f"p{p:02}" for p in range(PEOPLE)]), np.arange(PEOPLE + 1) * each, item, time, extra)


@pytest.fixture
def found():
    random = np.random.default_rng(0)
    items = Items(np.array([f"i{i}" for i in range(ITEMS)]), {})
    split = Split(items, part(random, 0, 4, 10), part(random, 4, 1, 3), part(random, 5, 1, 3))
    return shelf_log(split, ["is_click", "long_view"])


def learnt_from(found):
    return np.flatnonzero((found.part == 0) & (found.log.label >= 0))


def known(found, labels):
    learn = learnt_from(found)
    return with_rates(found.log, labels, learn, 0.0).stats, rates(found.log, labels, learn, ITEMS)


def test_no_label_moves_what_is_known_at_its_own_moment(found):
    """Not in the least: neither through its item's rate nor through the average of all."""
    before, _ = known(found, found.labels)
    for event in learnt_from(found):
        for which in range(2):
            labels = [label.copy() for label in found.labels]
            labels[which][event] = 1 - max(labels[which][event], 0)
            after, _ = known(found, labels)
            day = found.log.time // DAY
            same = (day == day[event]) & np.isin(np.arange(len(day)), learnt_from(found))
            assert same[event]
            assert np.array_equal(after[same], before[same])
            assert not np.array_equal(after, before)  # it does tell of other days


def test_held_out_labels_reach_nothing(found):
    stats, today = known(found, found.labels)
    held = found.part > 0
    turned = [np.where(held, 1 - label.clip(0), label) for label in found.labels]
    for before, after in zip((stats, today), known(found, turned), strict=True):
        assert np.array_equal(before, after)


def test_rates_are_those_counted_by_hand(found):
    """Of a held-out event, over all of train; of an event of train, over its other days."""
    log, learn = found.log, learnt_from(found)
    stats, today = known(found, found.labels)
    day = log.time // DAY

    def by_hand(item, of):
        here = of[log.item[of] == item]
        row = []
        for label in found.labels:
            mean = ((label[of] > 0).sum() + 0.5) / (len(of) + 1)
            rate = ((label[here] > 0).sum() + 10 * mean) / (len(here) + 10)
            row.append(np.log(rate / (1 - rate)) - np.log(mean / (1 - mean)))
        return [*row, np.log1p(len(here)) / 3]

    for item in range(ITEMS):
        assert np.allclose(today[item], by_hand(item, learn), atol=1e-6)
    for event in range(len(log.item)):
        if log.item[event] >= 0:
            of = learn[day[learn] != day[event]] if event in learn else learn
            assert np.allclose(stats[event], by_hand(log.item[event], of), atol=1e-6)
        else:
            assert np.allclose(stats[event], 0)


@pytest.mark.parametrize("always", [0, 1])
def test_a_label_that_is_always_the_same_tells_nothing_of_items(found, always):
    label = np.where(found.log.label >= 0, always, -1)
    stats, today = known(found, [label, found.labels[1]])
    assert np.isfinite(stats).all()
    assert np.isfinite(today).all()
    assert np.abs(today[:, 0]).max() < 1.5  # items shown often are a little surer


def test_days_are_those_of_the_people(found):
    learn = learnt_from(found)
    at_home = with_rates(found.log, found.labels, learn, 8.0).stats
    moved = found.log._replace(time=found.log.time + 8 * 3_600_000)
    assert np.array_equal(at_home, with_rates(moved, found.labels, learn, 0.0).stats)
    assert not np.array_equal(at_home, known(found, found.labels)[0])


def test_nothing_to_learn_from_is_said(found):
    with pytest.raises(ValueError, match="learns from impressions, and the train part has none"):
        with_rates(found.log, found.labels, learnt_from(found)[:0], 0.0)
