"""The CPU's walk over value groups gives what the plain loop gives, to the bit. A trace is only kept by the plain loop."""

import importlib.util

import numpy as np
import pytest

import spdd

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="needs numba: pip install 'spdd[fast]'")


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_walk_equals_the_plain_loop(seed):
    rng = np.random.default_rng(seed)
    rows, items, slots = int(rng.integers(1, 30)), int(rng.integers(80, 400)), int(rng.integers(1, 9))
    scores = rng.normal(size=(rows, items)) * rng.choice([0.01, 1, 30])
    if seed % 3 == 0:
        scores = scores.round()
    new, loud = (rng.random(items) < 0.15).astype(float), rng.integers(0, 2, items) / 2
    target = [
        {"at_least": rng.uniform(0, slots)},
        {"at_most": rng.uniform(0, 2)},
        {"at_least": 1, "at_most": slots},
        {},
    ][seed % 4]
    objectives = [spdd.Objective("new", new, rate=rng.uniform(0, 2, rows) if seed % 5 == 0 else None, **target)]
    if seed % 2:
        objectives.append(spdd.Objective("loud", loud))
    exclude = rng.random((rows, items)) < (0.97 if seed % 7 == 0 else 0.3)
    settings = {
        "scale": rng.choice(["logit", "probability", "relative"]),
        "start": [0.5, 3.0, 1e4, 0.0][seed % 4],
        "rate": rng.choice([0.0, 0.3, 5.0]),
        "guard": bool(seed % 6),
        "pace": ["even", "remaining"][seed % 2],
    }
    decoder = spdd.SPDD(
        objectives, slots=slots, **{k: v.item() if hasattr(v, "item") else v for k, v in settings.items()}
    )
    fast, plain = decoder.rerank(scores, exclude=exclude), decoder.rerank(scores, exclude=exclude, trace=True)
    for name in ("items", "relevance", "gained", "dual", "status"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(plain, name), err_msg=name)


def test_it_is_the_fast_walk_that_ran(monkeypatch):
    from spdd.decode import walk

    ran = []
    fast = walk._walk_fast
    monkeypatch.setattr(walk, "_walk_fast", lambda *args: ran.append(1) or fast(*args))
    value = np.arange(200) % 10 == 0
    spdd.SPDD([spdd.Objective("new", value, at_least=2)], slots=5).rerank(
        np.random.default_rng(0).normal(size=(4, 200))
    )
    assert ran
