"""The warm start: prices at which the best slate of scores that stand still keeps the targets, and not higher."""

import pytest
import torch

from spdd import MET, SPDD, Objective

SCALES = ["logit", "probability", "relative", "sigmoid"]


def world(rows=200, items=60, seed=0):
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, items, generator=random, dtype=torch.float64),
        (torch.rand(items, generator=random) < 0.2).double(),
        torch.rand(items, generator=random, dtype=torch.float64),
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("target", [{"at_least": 3}, {"at_most": 1}])
@pytest.mark.parametrize("values", ["0/1", "real"])
def test_the_static_slate_keeps_the_target_without_a_guard(scale, ties, target, values):
    logits, new, worth = world()
    if ties:
        logits, worth = logits.round(), (worth * 4).round() / 4
    value = new if values == "0/1" else worth
    decoder = SPDD([Objective("b", value, **target)], slots=6, scale=scale, start="warm", rate=0, guard=False)
    assert (decoder.rerank(logits + value * ("at_most" in target)).status == MET).all()


@pytest.mark.parametrize("scale", SCALES)
def test_a_price_any_lower_would_not_do(scale):
    logits, new, _ = world()
    objective = [Objective("new", new, at_least=3)]
    price = SPDD(objective, slots=6, scale=scale, start="warm", rate=0, guard=False).rerank(logits).dual[:, 0]
    for row, least in enumerate(price[:40].tolist()):
        if least > 1e-6:  # the least a price without a guard is set to, so that it can move
            slate = SPDD(objective, slots=6, scale=scale, start=least * 0.999, rate=0, guard=False).rerank(
                logits[row : row + 1]
            )
            assert slate.gained[0] == 2


def test_nothing_missing_costs_nothing():
    logits, new, _ = world()
    assert (SPDD([Objective("new", new, at_least=0)], slots=6, start="warm").rerank(logits).dual == 0).all()


@pytest.mark.parametrize("targets", [{"at_least": 3.5}, {"at_least": 3.2, "at_most": 3.8}])
def test_an_item_that_can_never_win_moves_no_price(targets):
    """A score of -1e9 is how many say "never"; prices are sought where the others are."""
    logits, _, worth = world()
    decoder = SPDD([Objective("worth", worth, **targets)], slots=6, start="warm", rate=0)
    logits[:, 7] = -20
    before = decoder.rerank(logits)
    logits[:, 7] = -1e9
    after = decoder.rerank(logits)
    assert torch.equal(after.items, before.items)
    torch.testing.assert_close(after.dual, before.dual, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_level_items_do_not_buy_more_than_was_asked(rate):
    """Two wanted items level with two plain ones at the warm price: only one is needed, a second would cost 2."""
    scores = torch.tensor([[5.0, 3.0, 3.0, 1.0, 1.0], [1.0, 1.0, 5.0, 3.0, 3.0]], dtype=torch.float64)
    wanted = (scores == 1).double()
    slate = SPDD([Objective("wanted", wanted, at_least=1)], slots=3, start="warm", rate=rate).rerank(scores)
    assert slate.relevance.sum(1).tolist() == [9.0, 9.0]
