"""One floor from words: its values, its floor, and what is refused."""

import numpy as np
import pytest

from spdd.evaluate.sweep import Point
from spdd.policy_file import policy_of
from spdd.policy_text import policy_text
from spdd.wish import wish_of
from test_slates import ITEMS, split  # noqa: F401


def test_values_and_floors(split):  # noqa: F811
    wish = wish_of(split, ["new>=30%"])
    assert (wish.floor, wish.per, wish.column) == (3.0, "slate", "new")
    assert (wish.value == (np.arange(ITEMS) % 5 == 0)).all()
    either = wish_of(split, ["categories=Cycling|Camping>=2 per traffic"], slots=4)
    assert (either.floor, either.per, either.slots) == (2.0, "traffic", 4)
    assert either.value.sum() == 20


@pytest.mark.parametrize(
    ("texts", "word"),
    [
        (["new>=1", "categories=Cycling>=1"], "one objective, got 2"),
        (["new<=1"], "must be a floor"),
        (["1<=new<=2"], "no cap"),
        (["new>=0"], "above 0"),
        (["new>=1 per both"], "one at a time"),
        (["artist>=1"], "holds labels"),
        (["nwe>=1"], "Did you mean 'new'"),
        (["categories=Cyclin>=1"], "Did you mean 'Cycling'"),
    ],
)
def test_what_cannot_be_compared_is_refused(split, texts, word):  # noqa: F811
    with pytest.raises(ValueError, match=word):
        wish_of(split, texts)


def test_the_text_of_a_policy_reads_back():
    point = Point(
        "tried", {}, "spdd", {"scale": "logit", "start": 0.25, "guard": False}, {"at_least": 3.0, "per": "traffic"}
    )
    import tomllib

    found = policy_of(tomllib.loads(policy_text(point, 'a "new" one', "is new", 12, "two\nlines")))
    assert found.decoder_name == "spdd"
    assert found.slots == 12
    assert found.settings == {"scale": "logit", "start": 0.25, "guard": False}
    assert (found.objectives[0].name, found.objectives[0].columns) == ('a "new" one', ("is new",))
    assert (found.objectives[0].at_least, found.objectives[0].per) == (3.0, "traffic")
    plain = policy_of(tomllib.loads(policy_text(Point("greedy", {}, "greedy"), "new", "new", 10, "x")))
    assert plain.decoder().objectives[0].at_least == 0
