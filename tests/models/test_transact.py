"""TransAct: state after placed shelves is exact, training sees no future, and what is planted is found."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

import spdd
from spdd.data.listeners import PLAYED, ListenerWorld
from spdd.models import checkpoint, train
from spdd.models.actions import HOUR, MOST, Actions, Requests, side_by_side, traits
from spdd.models.transact import (
    PARTS,
    QUICK,
    Config,
    Log,
    Shelves,
    Tokens,
    TransAct,
    _over_pairs,
    auc,
    auc_per_person,
    load,
    score,
    taken,
)

NOW = 1_650_882_384_975
COLUMNS = ("items", "actions", "times", "surfaces")


def ranker(items=150, seed=0, **options):
    """A model with weights large enough that every part of it matters."""
    torch.manual_seed(seed)
    config = Config(items=items, sizes=(5, 9), match=(0,), actions=4, surfaces=3, stats=2, **options)
    codes = torch.stack([torch.randint(0, size, (items,)) for size in config.sizes], 1)
    model = TransAct(config, codes, torch.randn(items, 2)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def people(items=150, seed=1):
    """Five requests: a full history, shorter ones, an empty one."""
    g = torch.Generator().manual_seed(seed)
    length = torch.tensor([MOST, 60, 3, 0, 1])
    there = torch.arange(MOST) >= MOST - length[:, None]

    def draw(low, high):
        return torch.randint(low, high, there.shape, generator=g)

    now = torch.full((5,), NOW)
    times = now[:, None] - draw(0, 36 * HOUR).sort(1, descending=True).values
    columns = (draw(-1, items), -1), (draw(1, 4), 0), (times, 0), (draw(0, 3), 0)
    return Requests(*(x.where(there, torch.tensor(e)) for x, e in columns), now, torch.tensor([0, 1, 2, 0, 1]))


def with_placed(r, slates, kind):
    """Requests whose histories end with these slates (R, k) as placed shelves."""
    one = torch.ones_like(slates)
    return r._replace(
        items=torch.cat([r.items, slates], 1),
        actions=torch.cat([r.actions, kind * one], 1),
        times=torch.cat([r.times, r.now[:, None] * one], 1),
        surfaces=torch.cat([r.surfaces, r.surface[:, None] * one], 1),
    )


@pytest.mark.parametrize("regression", [False, True])
def test_state_after_placed_shelves_is_what_it_would_be_afresh(regression):
    model, requests = ranker(regression=regression, taken=(-1.0, -1.0, 0.0, 1.0)), people()
    slate = spdd.Greedy(slots=30).generate(model, requests).items
    state, moved = model.start(requests), 0.0
    for slot in range(30):
        afresh = model.logits(model.start(with_placed(requests, slate[:, :slot], model.config.actions)))
        step = model.logits(state)
        torch.testing.assert_close(step, afresh, atol=1e-4, rtol=0)
        choice = afresh.scatter(1, slate[:, :slot], -torch.inf).argmax(1)
        assert torch.equal(choice, slate[:, slot])
        state = model.advance(state, choice)
        moved = max(moved, float((model.logits(state) - step).abs().max()))
    assert moved > 0.01  # placed shelves do matter


def test_rows_do_not_know_of_each_other_and_padding_is_nothing():
    model, requests = ranker(), people()
    together = model.logits(model.start(requests))
    for row in range(5):
        alone = Requests(*(x[row : row + 1] for x in requests[:-1]))
        torch.testing.assert_close(model.logits(model.start(alone))[0], together[row], atol=1e-5, rtol=0)
    short = requests._replace(**{name: getattr(requests, name)[:2, -60:] for name in COLUMNS})
    short = short._replace(now=requests.now[:2], surface=requests.surface[:2])
    torch.testing.assert_close(model.logits(model.start(short))[1], together[1], atol=1e-5, rtol=0)
    none = requests._replace(**{name: getattr(requests, name)[:, :0] for name in COLUMNS})
    torch.testing.assert_close(model.logits(model.start(none))[3], together[3], atol=1e-5, rtol=0)


def test_a_row_that_got_nothing_stays_as_it_is():
    model, requests = ranker(), people()
    state = model.start(requests)
    before = model.logits(state)
    after = model.logits(model.advance(state, torch.tensor([3, -1, 3, -1, 3])))
    assert torch.equal(after[1], before[1])
    assert torch.equal(after[3], before[3])
    assert not torch.equal(after[0], before[0])
    some, none = torch.full((5,), 3), torch.full((5,), -1)
    later = model.logits(model.advance(model.advance(state, none), some))
    torch.testing.assert_close(later, model.logits(model.advance(state, some)), atol=1e-5, rtol=0)


def test_the_window_is_three_hours_between_actions():
    model = ranker(layers=1)
    where = torch.zeros(1, 2, dtype=torch.long)

    def newest(gap, first=5):
        times = torch.tensor([[NOW - int(gap * HOUR), NOW]])
        kind, now = torch.tensor([[1, 2]]), torch.tensor([NOW])
        return model.start(Requests(torch.tensor([[first, 6]]), kind, times, where, now, where[0, :1])).last

    assert not torch.allclose(newest(2.9), newest(2.9, first=7))
    assert torch.allclose(newest(3.1), newest(3.1, first=7))


def test_a_pool_is_what_a_decoder_may_choose_from():
    model, requests = ranker(), people()
    pool = torch.stack([torch.randperm(150, generator=torch.Generator().manual_seed(r))[:12] for r in range(5)])
    pool[2, 9:] = -1  # fewer candidates than slots
    requests = requests._replace(pool=pool)
    slate = spdd.Greedy(slots=10).generate(model, requests, exclude=requests.excluded(150))
    assert all(set(items) <= {*mine, -1} for items, mine in zip(slate.items.tolist(), pool.tolist(), strict=True))
    whole = spdd.Greedy(slots=10).generate(model, people(), exclude=requests.excluded(150))
    assert torch.equal(slate.items, whole.items)  # looking at the pool alone changes no score
    torch.testing.assert_close(slate.relevance, whole.relevance, atol=1e-4, rtol=0, equal_nan=True)
    assert people().excluded(150) is None
    unseen = spdd.Greedy(slots=10).generate(model, people(), exclude="seen").items
    assert not set(unseen[1].tolist()) & set(people().items[1].tolist())


# ---- learning -------------------------------------------------------------------------------------------------


def small_log(seed=0, users=40, events=12, items=150):
    """Events of a minute or five hours apart; the first three are history, the seventh and eighth are simultaneous."""
    g = np.random.default_rng(seed)
    time = NOW + np.cumsum(g.choice([60_000, 5 * HOUR], (users, events), p=[0.8, 0.2]), 1)
    time[:, 7] = time[:, 6]
    label = g.integers(0, 2, (users, events))
    label[:, :3] = -1
    n = users * events
    return Actions(
        start=np.arange(users + 1) * events,
        item=g.integers(-1, items, n),
        action=g.integers(1, 4, n),
        time=time.ravel(),
        surface=g.integers(0, 3, n),
        label=label.ravel(),
        stats=np.zeros((n, 2), np.float32),
    )


def blind(model):
    """The model, told nothing of items now, as a log with stats of 0 is."""
    model.known.zero_()
    return model


def test_scores_of_a_log_are_those_of_the_decoder():
    model, log = blind(ranker()), small_log(users=4)
    wanted = np.flatnonzero(log.label >= 0)
    scores = score(model, Log(log, wanted, model.config), batch=16)
    asked = model.logits(model.start(log.requests(wanted, most=12)))
    known = log.item[wanted] >= 0
    own = asked[torch.arange(len(wanted)), torch.from_numpy(log.item[wanted].clip(0))].numpy()
    np.testing.assert_allclose(scores[known], own[known], atol=1e-4)


def test_no_candidate_sees_itself_its_tie_or_the_future():
    model, log = ranker(), small_log()
    wanted = np.flatnonzero(log.label >= 0)
    before = score(model, Log(log, wanted, model.config))
    changed = log.action.copy()
    changed[6:12] = changed[6:12] % 3 + 1  # of the first person; event 7 happened in the same millisecond as 6
    after = score(model, Log(log._replace(action=changed), wanted, model.config))
    touched = np.abs(before - after) > 1e-6
    assert not touched[wanted <= 7].any()
    assert touched[(wanted > 7) & (wanted < 12)].all()
    assert not touched[wanted >= 12].any()


def test_training_on_slates_is_what_decoding_does():
    """Candidates inside a drawn slate get the score that the decoder gives after the earlier ones were placed."""
    model, log = blind(ranker()), small_log(users=6)
    wanted = np.flatnonzero(log.label >= 0)
    log = log._replace(surface=np.zeros_like(log.surface), item=log.item.clip(0))
    rows = side_by_side(log.start, wanted, np.arange(6))
    inputs, _, weight, drawn = Log(log, wanted, model.config).take(
        rows, torch.device("cpu"), torch.Generator().manual_seed(0)
    )
    scores, now = model(*inputs), inputs[2].now
    count, checked = rows.shown.shape[1], 0
    for person, place in weight.nonzero().tolist():
        if place < count:  # judged by all that was known, not inside a slate
            continue
        slate = [p for p in range(count, 2 * count) if weight[person, p] and now[person, p] == now[person, place]]
        events = [int(rows.shown[person, p - count]) for p in slate if p <= place]
        state = model.start(log.requests(np.array(events[:1]), most=12))
        for event in events[:-1]:
            state = model.advance(state, torch.tensor([log.item[event]]))
        assert len({int(drawn[person, p]) for p in slate}) == 1
        assert (drawn[person] == drawn[person, place]).sum() == len(slate)
        expected = model.logits(state)[0, log.item[events[-1]]]
        torch.testing.assert_close(scores[person, place], expected, atol=1e-4, rtol=0)
        checked += len(events) > 1
    assert checked > 10


def test_it_learns_what_listeners_like(tmp_path):
    world = ListenerWorld(users=120, items=120, genres=6, seed=1)
    played = world.log(sessions=6)
    log = Actions(
        played.start, played.item, 1 + played.extra["action"], played.time, np.zeros_like(played.item),
        played.extra["action"], np.zeros((len(played.item), 0), np.float32),
    )  # fmt: skip
    known = traits(world.catalog.attributes, ("genre", "provider", "new_creator"), items=120)
    config = Config(
        items=120,
        sizes=known.sizes,
        match=(0,),
        actions=3,
        surfaces=1,
        width=16,
        layers=1,
        heads=2,
        inner=32,
        forget=0.0,
    )
    last = played.extra["session"] == 5
    torch.manual_seed(0)
    model = TransAct(config, known.codes)
    task = Shelves(model, log, np.flatnonzero(~last), np.flatnonzero(last), batch=256, fingerprint="listeners")
    settings = train.Settings(epochs=3, rate=5e-3, batch=256)
    best = train.fit(task, settings, tmp_path, progress=False).best
    taken = played.extra["action"] == PLAYED
    fame = np.bincount(played.item[~last], taken[~last], 120) / np.bincount(played.item[~last], minlength=120).clip(1)
    assert best["auc"] > auc(fame[played.item[last]], taken[last]) + 0.05
    assert list(best) == ["mean auc", "auc", "auc per person", "minus log loss"]


def test_batches_are_repeatable_whole_and_as_many_for_each_process():
    model, log = ranker(), small_log()
    wanted = np.flatnonzero(log.label >= 0)
    task = Shelves(model, log, wanted, wanted[:0], batch=50, fingerprint="")
    one, again = (list(task.batches(2, 0, 1)) for _ in range(2))
    assert all(np.array_equal(a.event, b.event) for a, b in zip(one, again, strict=True))
    assert sorted(np.concatenate([b.shown[b.asked] for b in one])) == wanted.tolist()
    halves = [list(task.batches(2, rank, 2)) for rank in range(2)]
    assert len(halves[0]) == len(halves[1])
    assert set(wanted) == {e for half in halves for b in half for e in b.shown[b.asked]}
    assert task.validate() == {}


def test_the_loss_over_pairs_compares_what_was_taken_and_left_of_one_slate():
    g = torch.Generator().manual_seed(4)
    scores, label = torch.randn(3, 9, generator=g), torch.rand(3, 9, generator=g) < 0.4
    slate = torch.randint(-1, 2, (3, 9), generator=g)
    each = [
        float(torch.log1p((scores[row, j] - scores[row, i]).exp()))
        for row in range(3)
        for i in range(9)
        for j in range(9)
        if label[row, i] and not label[row, j] and slate[row, i] == slate[row, j] >= 0
    ]
    assert each
    torch.testing.assert_close(float(_over_pairs(scores, label, slate)), np.mean(each), rtol=1e-5, atol=0)
    assert float(_over_pairs(scores, label & False, slate)) == 0


def test_ahead_nobody_knows_an_answer_to_what_is_asked():
    model, log = ranker(), small_log()
    wanted = np.flatnonzero(log.label >= 0)
    wanted = wanted[wanted % 12 > 5]
    other = log._replace(action=log.action.copy())
    other.action[wanted] = log.action[wanted] % 3 + 1
    for ahead in (True, False):
        before, after = (score(model, Log(x, wanted, model.config, ahead=ahead)) for x in (log, other))
        assert np.array_equal(before, after) == ahead
    each = score(model, Log(log, wanted, model.config))
    first = np.unique(log.rows()[wanted], return_index=True)[1]
    np.testing.assert_allclose(score(model, Log(log, wanted, model.config, ahead=True))[first], each[first], atol=1e-5)


def test_the_regression_is_learnt_apart_and_the_mean_of_both_ranks():
    """Each has its own loss: what one makes of things is nothing to the gradient of the other."""
    model, log = ranker(regression=True), small_log()
    wanted = np.flatnonzero(log.label >= 0)
    task = Shelves(model, log, wanted, wanted[:0], batch=10_000, fingerprint="")
    batch = next(task.batches(0, 0, 1))

    def gradient(of):
        model.zero_grad()
        task.loss(batch, torch.Generator().manual_seed(0)).backward()
        return of.grad.clone()

    table, layer = model.regression.table.weight, model.out.weight
    before = gradient(table), gradient(layer)
    assert all(x.abs().max() > 0 for x in before)
    with torch.no_grad():
        model.regression.linear.bias += 3
    assert torch.equal(gradient(layer), before[1])
    assert not torch.equal(gradient(table), before[0])
    inputs, *_ = Log(log, wanted, model.config).take(batch, torch.device("cpu"))
    torch.testing.assert_close(model(*inputs), sum(model.votes(*inputs)) / 2)


def test_the_regression_knows_how_long_ago_the_last_action_was_and_forgets_placed_shelves():
    model, requests = ranker(regression=True), people()
    tokens = [getattr(requests, name) for name in COLUMNS]
    past = Tokens(tokens[0], tokens[1], tokens[2], tokens[3], tokens[1] > 0)
    kind, time = model._latest(past, past.there[:, None])
    assert kind[:, 0].tolist() == [*requests.actions[:3, -1].tolist(), 0, int(requests.actions[4, -1])]
    assert time[:3, 0].tolist() == requests.times[:3, -1].tolist()
    later = with_placed(requests, torch.ones(5, 2, dtype=torch.long), model.config.actions)
    seen = Tokens(later.items, later.actions, later.times, later.surfaces, later.actions > 0)
    assert torch.equal(model._latest(seen, seen.there[:, None])[0], kind)
    for parameter in model.regression.parameters():
        torch.nn.init.zeros_(parameter)
    start = int(model.regression.starts[-model.regression.linear.in_features + model.config.stats])
    with torch.no_grad():  # a weight for every part of the time since: 0, 1, 2, ...
        model.regression.table.weight[start : start + PARTS, 0] = torch.arange(PARTS).float() / QUICK
    known = torch.zeros(5, 1, model.config.stats), torch.zeros(5, 1, 4, model.config.actions + 1)
    one = [torch.zeros(5, 1, dtype=torch.long)] * 4
    minutes = torch.tensor([0.0, 1.0, 6.9, 7.1, 2.0**30])[:, None]
    found = model.regression(one[:3], one[3], one[:2], (one[0], minutes), *known)
    assert found[:, 0].tolist() == [0, 1, 2, 3, PARTS - 1]


def test_which_kinds_of_actions_mean_that_something_was_taken():
    log = small_log()._replace(action=np.array([1, 2, 2, 3, 3, 1]), label=np.array([-1, 0, 0, 1, 0, -1]))
    assert taken(log, np.flatnonzero(log.label >= 0), 5) == (-1, -1, 0, 0.5, -1)


def test_a_checkpoint_of_an_option_that_is_no_more_is_refused_in_words(tmp_path):
    model = ranker(regression=True)
    about = {"kind": "transact", "fingerprint": "", "weights": model.state_dict()}
    checkpoint.save(tmp_path / "now.pt", config=asdict(model.config), **about)
    checkpoint.save(tmp_path / "before.pt", config={**asdict(model.config), "wide": False}, **about)
    checkpoint.save(tmp_path / "wide.pt", config={**asdict(model.config), "wide": True}, **about)
    for name in ("now.pt", "before.pt"):
        again = load(tmp_path / name)
        assert torch.equal(again.logits(again.start(people())), model.logits(model.start(people())))
    with pytest.raises(ValueError, match="trained with `wide`"):
        load(tmp_path / "wide.pt")


def test_auc():
    scores, labels = np.array([0.1, 0.5, 0.5, 0.9, 0.3, 0.2]), np.array([0, 0, 1, 1, 0, 0])
    assert auc(scores[:4], labels[:4]) == 0.875
    mean, each, weight = auc_per_person(scores, labels, np.array([3, 3, 3, 3, 5, 5]))
    assert (mean, each.tolist(), weight.tolist()) == (0.875, [0.875], [4.0])
    assert np.isnan(auc(scores[4:], labels[4:]))


def test_traits_of_items():
    table = {"who": np.array(["a", "b", "a", None], object), "long": np.array([1.0, 2.0, np.nan, 9.0])}
    known = traits(table, ("who", "long"), items=4, least=2, buckets=3)
    assert known.codes[:, 0].tolist() == [1, 0, 1, 0]
    assert known.codes[2, 1] == 0
    assert known.sizes == (2, 1 + int(known.codes[:, 1].max()))
    with pytest.raises(ValueError, match="asks for trait 'mood'"):
        traits(table, ("mood",), items=4)
    assert traits({}, (), items=4).codes.shape == (4, 0)
