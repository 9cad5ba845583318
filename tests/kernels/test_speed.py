"""A guard on speed that no busy machine can set off: processor time, the least of several runs, and generous ratios.

What is really reached is in docs/speed.md; here only that the fast way is still taken at all.
"""

import importlib.util
import time

import pytest
import torch

from spdd.kernels import Product, prepare, priced, priced_argmax

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="needs numba: pip install 'spdd[fast]'")
ROWS, ITEMS, WIDTH = 32, 100_000, 32


def least(run, times=7):
    run()
    took = []
    for _ in range(times):
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return min(took)


def eager(logits, price, value, scale, seen, used):
    scores = logits.scatter(1, seen, -torch.inf)
    scores = scores.softmax(1) if scale == "probability" else scores
    return (scores + price * value).scatter(1, used, -torch.inf).argmax(1)


@pytest.fixture(scope="module")
def world():
    g = torch.Generator().manual_seed(0)
    hidden, table = torch.randn(ROWS, WIDTH, generator=g), torch.randn(ITEMS, WIDTH, generator=g)
    value = (torch.rand(1, ITEMS, generator=g) < 0.1).float()
    seen, used = (torch.randint(0, ITEMS, (ROWS, n), generator=g) for n in (100, 30))
    return hidden, table, value, torch.rand(ROWS, 1, generator=g), seen, used


@pytest.mark.parametrize("scale", ["logit", "probability"])
def test_given_scores_take_a_third_of_plain_torch_at_most(world, scale):
    hidden, table, value, price, seen, used = world
    logits, ready = hidden @ table.T, prepare(value)
    ours = least(lambda: priced_argmax(logits, ready, price, scale=scale, seen=seen, used=used))
    assert 3 * ours < least(lambda: eager(logits, price, value, scale, seen, used))


def test_hidden_states_take_no_longer_than_plain_torch(world):
    hidden, table, value, price, seen, used = world
    product, ready = Product(hidden, table), prepare(value)
    product = product._replace(longest=priced.longest(product))
    ours = least(lambda: priced_argmax(product, ready, price, seen=seen, used=used))
    assert ours < least(lambda: eager(hidden @ table.T, price, value, "logit", seen, used))
