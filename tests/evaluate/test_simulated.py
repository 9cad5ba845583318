"""Listeners come back to what a policy shows them: what they did changes what comes next, under every arm alike."""

import numpy as np
import pytest
import torch

import spdd
from spdd.data.listeners import PLAYED, ListenerWorld, Visit
from spdd.evaluate.simulated import Arm, before, decoded_by, learnt_from, measured, outcomes, sasrec
from spdd.models.neighbours import item_knn

WORLD = ListenerWorld(users=60, items=200)
LOG = WORLD.log(sessions=4)
VALUE = WORLD.new_creator.numpy().astype(float)
BEFORE = before(WORLD, LOG, VALUE)
KNN = item_knn(learnt_from(WORLD, LOG).train, WORLD.items)


def arm(floor=None, name="arm"):
    wish = [] if floor is None else [spdd.Objective("new", value=VALUE, at_least=floor)]
    return Arm(name, decoded_by(spdd.SPDD(wish, 5) if wish else spdd.Greedy(slots=5), KNN))


def played(arms, **more):
    return outcomes(WORLD, arms, BEFORE, value=VALUE, **({"visits": 2, "pages": 2} | more))


def test_columns_add_up():
    found = played([arm()]).columns
    assert np.array_equal(found["looks"], found["plays"] + found["skips"])
    assert (found["wanted plays"] <= found["plays"]).all()
    assert (found["parts"] <= found["plays"] + 1e-9).all()
    assert (found["slots"] == 5 * found["slates"]).all()
    assert found["slates"].min() >= 2  # a slate a visit at least
    assert 2 < found["slates"].mean() < 4  # some ask for more, not all


def test_a_policy_is_told_what_was_played_before_and_in_this_visit():
    heard = []

    def policy(callers):
        heard.append(callers)
        return decoded_by(spdd.Greedy(slots=5), KNN)(callers)

    played([Arm("spy", policy)], visits=1, pages=2)
    first, second = heard
    grown = second.history[:, first.history.shape[1] :]
    assert torch.equal(grown, second.sitting)
    answer = WORLD.respond(Visit(first.user, first.sitting), decoded_by(spdd.Greedy(slots=5), KNN)(first).items, seed=0)
    assert torch.equal((second.sitting >= 0).sum(1), answer.played.sum(1)[second.user].long())
    assert np.array_equal(second.user.numpy(), np.flatnonzero((answer.played.sum(1) >= 0.5 * answer.looked.sum(1).clamp_min(1)).numpy()))  # fmt: skip


def test_nobody_is_shown_what_he_played():
    def policy(callers):
        slate = decoded_by(spdd.Greedy(slots=5), KNN)(callers)
        assert not any(np.isin(row, had[had >= 0]).any() for row, had in zip(slate.items, callers.history, strict=True))
        return slate

    played([Arm("strict", policy)])


def test_listeners_answer_alike_in_any_batch_and_to_the_same_slates_under_any_name():
    one = played([arm(), arm(None, "again"), arm(3, "spdd")], batch=7)
    two = played([arm()], batch=1000)
    for name, column in one.columns.items():
        assert np.array_equal(column[0], column[1])
        assert np.array_equal(column[0], two.columns[name][0])
    assert (one.columns["met"][2] == one.columns["slates"][2]).all()
    assert one.columns["wanted slots"][2].mean() > one.columns["wanted slots"][0].mean()


def test_noises_differ():
    found = played([arm()], noises=2)
    assert found.noises == 2
    assert not np.array_equal(found.columns["minutes"][0, 0], found.columns["minutes"][0, 1])
    other = played([arm()], seed=1)
    assert not np.array_equal(found.columns["minutes"][0, 0], other.columns["minutes"][0, 0])


def test_what_was_before_is_what_the_log_says():
    took = LOG.extra["action"] == PLAYED
    rows = LOG.rows()
    for user in (0, 31, 59):
        mine = (rows == user) & took
        had = BEFORE.history[user]
        assert had[had >= 0].tolist() == LOG.item[mine].tolist()
        assert BEFORE.columns["minutes before"][user] == pytest.approx(LOG.extra["minutes"][mine].sum(), rel=1e-5)
        assert BEFORE.columns["wanted plays before"][user] == VALUE[LOG.item[mine]].sum()
    halves = [measured(WORLD, LOG, VALUE, range(*part)) for part in ((0, 2), (2, 4))]
    for name, whole in measured(WORLD, LOG, VALUE).items():
        assert np.allclose(whole, halves[0][name] + halves[1][name])
    assert len(before(WORLD, LOG, VALUE, users=7).history) == 7


def test_what_is_seen_is_the_own_arms():
    found = played([arm(), arm(3, "spdd")])
    user, arms = np.array([4, 9]), np.array([1, 0])
    seen = found.of(user, arms)
    assert seen["minutes"].tolist() == [found.columns["minutes"][1, 0, 4], found.columns["minutes"][0, 0, 9]]
    assert seen["plays before"].tolist() == BEFORE.columns["plays before"][user].tolist()
    same = found.alike(["a", "b", "c"])
    assert same.arms == ("a", "b", "c")
    assert np.array_equal(same.columns["plays"][2], found.columns["plays"][0])


def test_a_sasrec_learns_from_plays_and_is_found_again(tmp_path):
    split = learnt_from(WORLD, LOG)
    took = int((LOG.extra["action"] == PLAYED).sum())
    assert len(split.train.item) + len(split.validation.item) == took
    model = sasrec(WORLD, LOG, tmp_path, epochs=1, progress=False)
    again = sasrec(WORLD, LOG, tmp_path, epochs=1, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    found = played([Arm("sasrec", decoded_by(spdd.Greedy(slots=5), model))], visits=1, pages=1)
    assert found.columns["plays"].sum() > 0


def test_too_many_listeners_are_refused():
    many = BEFORE._replace(history=BEFORE.history.repeat(2, 1))
    with pytest.raises(ValueError, match="at most the 60 listeners"):
        outcomes(WORLD, [arm()], many, value=VALUE)
