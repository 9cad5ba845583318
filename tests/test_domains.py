"""From a model and a split to a bench: who is asked, what counts as consumed, what can be reached, who learns from whom."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from spdd import SPDD, Objective
from spdd.data.interactions import Sequences
from spdd.domains import Begun, bench, targets
from spdd.evaluate import grid
from spdd.evaluate.sweep import Point, sweep
from spdd.models.sasrec import Config, SASRec
from spdd.trained import Asked, Opened, by_history
from test_slates import ITEMS, USERS, model, split  # noqa: F401

VALUES = (np.arange(ITEMS) % 5 == 0).astype(float)


@pytest.fixture
def made(split):  # noqa: F811
    return bench(Opened(model(), by_history, "d"), split, values=VALUES, floor=2, slots=4)


def asked(histories, later, exclude="seen"):
    histories, later = ([np.array(x) for x in rows] for rows in (histories, later))
    return Asked(
        np.array([f"u{i}" for i in range(len(later))]),
        lambda rows: histories[rows],
        lambda rows: exclude if isinstance(exclude, str) else exclude[rows],
        lambda rows: later[rows],
    )


def test_what_cannot_be_given_is_no_target():
    found = targets(asked([[3], [1, 2]], [[5, 3, 5, -1, 4], [2]]))
    assert found.tolist() == [[4, 5], [-1, -1]]


def test_targets_of_a_pool_lie_in_it():
    outside = np.array([[True, False, False], [False, True, True]])
    assert targets(asked([[], []], [[0, 1], [0]], exclude=outside)).tolist() == [[1], [0]]


def test_reachable_equals_sorting_what_is_left(made, split):  # noqa: F811
    seen = split.history("test").lists()
    for row, own in enumerate(seen):
        left = np.sort(np.delete(VALUES, own))[::-1][:4].sum()
        assert made.domain.reachable[row] == left


def test_every_family_is_swept_from_a_trained_model(made, tmp_path):
    some = {p.curve: p for p in grid.points(2, 4)}
    records = sweep(lambda: made, list(some.values()), tmp_path, batch=7)
    by_curve = {r["curve"]: r["metrics"] for r in records}
    assert set(by_curve) == set(some)
    assert by_curve["SPDD priced"]["attained"] == 1
    assert by_curve["greedy"]["share"] < by_curve["SPDD as printed"]["share"]


def test_bandits_learn_from_validation_alone(split):  # noqa: F811
    """Other labels in the test part change how slates are judged, never the slates."""
    start = np.arange(USERS + 1)
    other = split._replace(test=Sequences(split.test.user, start, np.arange(USERS), start[:-1], {}))
    point = Point("MB-TS", {"squeeze": 0.5}, "bandit-ts")
    items = []
    for part in (split, other):
        one = bench(Opened(model(), by_history, "d"), part, values=VALUES, floor=2, slots=4)
        batch = one.domain.asked(slice(0, USERS))
        items.append(one.policy(point)(batch).items)
    assert (np.asarray(items[0]) == np.asarray(items[1])).all()
    with pytest.raises(ValueError, match="cannot be judged"):
        bench(Opened(model(), by_history, "d"), split, values=VALUES, floor=2, part="validation").policy(point)


def test_a_model_that_has_begun_gives_what_one_that_begins_gives(split):  # noqa: F811
    """Whatever decoding writes into a state, the next point begins where the first one did."""
    torch.manual_seed(0)
    fresh = SASRec(ITEMS, Config(width=8, heads=2, slots=2)).eval()
    begun, decoder = Begun(fresh), SPDD([Objective("few", VALUES, at_least=2)], slots=4)
    histories = split.history("test").lists()
    alone = decoder.generate(fresh, histories, exclude="seen").items
    for _ in range(2):
        assert (decoder.generate(begun.at("all", histories), histories, exclude="seen").items == alone).all()
    assert len(begun.held) == 1
    assert Begun(fresh, room=1).at("all", histories) is fresh  # no room: it begins anew


def test_another_model_or_other_values_are_another_domain(split):  # noqa: F811
    def digest(name="d", values=VALUES, **settings):
        return bench(Opened(model(), by_history, name), split, values=values, floor=2, **settings).domain.digest

    assert len({digest(), digest("e"), digest(values=1 - VALUES), digest(part="validation"), digest(users=5)}) == 5
    assert digest() == digest()


def test_wrong_input_is_refused(split):  # noqa: F811
    opened = Opened(model(), by_history, "d")
    with pytest.raises(ValueError, match="one number for each of 40 items"):
        bench(opened, split, values=np.ones(3), floor=1)
    with pytest.raises(ValueError, match="'validation' or 'test'"):
        bench(opened, split, values=VALUES, floor=1, part="train")


@pytest.mark.parametrize("part", ["train", "test"])
def test_another_split_of_the_same_items_is_another_domain(made, split, part):  # noqa: F811
    """Same vocabulary, users and model: what users did, and are judged by, counts too."""
    rows = getattr(split, part)
    other = split._replace(**{part: replace(rows, item=(rows.item + 1) % ITEMS)})
    again = bench(Opened(model(), by_history, "d"), other, values=VALUES, floor=2, slots=4)
    assert other.items.fingerprint() == split.items.fingerprint()
    assert again.domain.digest != made.domain.digest
