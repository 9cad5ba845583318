"""The menu: what is on disk is what was built, what does not fit is refused, and a million items take seconds."""

import time

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import spdd
from spdd.catalog import Catalog
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan, prepare


def catalog(items=50, size=5, depth=3, seed=0):
    return Catalog.of(np.random.default_rng(seed).integers(0, size, (items, depth)), sizes=[size] * depth)


def tokenizer(names):
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({name: i for i, name in enumerate(["[UNK]", *names])}, unk_token="[UNK]")),
        unk_token="[UNK]",
    )


IDS = [f"<{place}_{code}>" for place in "abc" for code in range(5)]


def test_every_item_is_spelled_as_the_catalog_has_it():
    items = catalog()
    menu = Menu.of(items, first=7)
    want = items.tokens.numpy() + 7 + np.array([0, 5, 10])
    np.testing.assert_array_equal(menu.spell(np.arange(50)), want)
    np.testing.assert_array_equal(Menu.of(items, words=[np.arange(5)] * 3).spell([3, 4]), items.tokens[[3, 4]])


def test_words_may_stand_in_any_order():
    """A vocabulary that shuffled the codes: the same items, in the words it has."""
    items, rng = catalog(), np.random.default_rng(1)
    words = [rng.permutation(40)[:5] for _ in range(3)]
    menu = Menu.of(items, words=words)
    rows = at.advance(menu, Plan.of(menu, spdd.Greedy(slots=1)).begin(50), menu.spell(np.arange(50)))
    chosen = at.items(menu, rows)[:, 0]
    np.testing.assert_array_equal(items.tokens[chosen], items.tokens)


def test_names_are_found_in_the_tokenizer():
    reader = tokenizer(IDS)
    menu = Menu.of(catalog(), words=["<a_{}>", "<b_{}>", "<c_{}>"], tokenizer=reader)
    assert reader.convert_ids_to_tokens(menu.spell([0])[0].tolist()) == [
        f"<{p}_{c}>" for p, c in zip("abc", catalog().tokens[0].tolist(), strict=True)
    ]
    assert menu.check(tokenizer=reader) is menu
    with pytest.raises(ValueError, match="other names for its tokens"):
        menu.check(tokenizer=tokenizer(IDS[::-1]))
    with pytest.raises(ValueError, match=r"the tokenizer has no token '<d_0>'"):
        Menu.of(catalog(), words=["<a_{}>", "<b_{}>", "<d_{}>"], tokenizer=reader)


def test_saved_is_loaded(tmp_path):
    rng = np.random.default_rng(0)
    reader = tokenizer([*IDS, "<end>"])
    menu = Menu.of(
        catalog(), words=["<a_{}>", "<b_{}>", "<c_{}>"], tokenizer=reader, between=[0], end=16,
        columns={"new": rng.random(50) < 0.3, "margin": rng.random(50)},
    )  # fmt: skip
    menu.save(tmp_path / "items.menu")
    again = Menu.load(tmp_path / "items.menu", tokenizer=reader, verify=True)
    assert (again.fingerprint, again.columns, again.vocabulary, again.end, len(again)) == (
        menu.fingerprint, menu.columns, menu.vocabulary, 16, 50,
    )  # fmt: skip
    for mine, other in zip(again.tree, menu.tree, strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(again.column("margin"), menu.column("margin"))
    policy = {"slots": 3, "objectives": [{"name": "new", "at_least": 1}]}
    logits = torch.from_numpy(rng.normal(size=(2, 17)))
    scores = [at.priced(m, Plan.of(m, policy).begin(2), logits) for m in (menu, again)]
    assert torch.equal(*scores)
    with pytest.raises(ValueError, match="other names"):
        Menu.load(tmp_path / "items.menu", tokenizer=tokenizer([*IDS[::-1], "<end>"]))
    with pytest.raises(ValueError, match="at least 17 tokens, but the model's has 12"):
        Menu.load(tmp_path / "items.menu", vocabulary=12)
    assert [p.name for p in tmp_path.iterdir()] == ["items.menu"]


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "items.menu"
    menu = Menu.of(catalog(), first=0, columns={"new": np.arange(50) % 2})
    menu.save(path)
    whole = path.read_bytes()
    for cut in (0, 5, 12, 25, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"written by `Menu\.save`"):
            Menu.load(path)
    changed = bytearray(whole)
    changed[-200] ^= 1
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="fingerprint differs"):
        Menu.load(path, verify=True)


def test_other_values_are_another_menu_and_rows_go_on_with_theirs():
    menu = Menu.of(catalog(), first=0, columns={"new": np.arange(50) % 2})
    swapped = menu.with_columns({"new": (np.arange(50) + 1) % 2})
    assert menu.fingerprint != swapped.fingerprint
    assert menu.tree.child is swapped.tree.child
    policy = {"slots": 3, "objectives": [{"name": "new", "at_least": 3}]}
    for which, parity in ((menu, 1), (swapped, 0)):
        rows = Plan.of(which, policy).begin(4)
        rng = np.random.default_rng(0)
        while not at.finished(rows).all():
            scores = at.priced(which, rows, torch.from_numpy(rng.normal(size=(4, which.vocabulary))))
            rows = at.advance(which, rows, scores.argmax(1))
        assert (at.items(which, rows) % 2 == parity).all()
    assert menu.with_columns({"new": np.arange(50) % 2}).fingerprint == menu.fingerprint


def test_values_that_decoders_bring_become_columns():
    menu = Menu.of(catalog(), first=0, columns={"old": np.arange(50) % 3})
    new = np.arange(50) % 2
    one = spdd.SPDD([spdd.Objective("new", new, at_least=1)])
    two = spdd.SPDD([spdd.Objective("new", 1 - new, at_least=1), spdd.Objective("old", "old", at_most=9)])
    made, plans = prepare(menu, [one, two, one])
    assert made.columns == ("old", "new", "new'")
    assert plans[0] is plans[2]
    assert [p.columns for p in plans[:2]] == [(1,), (2, 0)]
    assert prepare(made, [one, two])[0] is made  # nothing is new to it


@pytest.mark.parametrize(
    "columns", [{"x": [1.0, 2.0]}, {"x": np.full(50, np.nan)}, {"x": np.full(50, -1)}, {"x": ["a"] * 50}]
)
def test_wrong_columns_are_refused(columns):
    with pytest.raises((ValueError, TypeError), match="column 'x' must"):
        Menu.of(catalog(), first=0, columns=columns)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({}, "needs either `first`"),
        ({"first": 0, "words": [[0]]}, "not both"),
        ({"first": -1}, "at least 0"),
        ({"words": [[0, 1, 2, 3, 4]]}, "one entry for each of 3 places"),
        ({"words": [[0, 1, 2, 3]] * 3}, "5 whole numbers"),
        ({"words": [[0, 1, 2, 3, 3]] * 3}, "twice"),
        ({"words": ["<a>"] * 3}, "must have a place for the number"),
        ({"words": ["<a_{}>"] * 3}, "give `tokenizer` too"),
        ({"first": 3, "end": 3}, "`end` must differ"),
        ({"first": 3, "end": -1}, "`end` must be a token"),
        ({"first": 3, "between": [0.5]}, "`between` must be a token"),
    ],
)
def test_wrong_words_are_refused(words, complaint):
    with pytest.raises((ValueError, TypeError), match=complaint):
        Menu.of(catalog(), **words)


def test_many_distinct_values_share_classes_and_no_value_leaves_its_box():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 9):
        columns = {f"c{i}": rng.random(500) if i % 2 else rng.integers(0, 3, 500) for i in range(count + 1)}
        tree = Menu.of(catalog(500), first=0, columns=columns).tree
        assert len(tree.low) <= 64
        assert (tree.value >= tree.low[tree.klass]).all()
        assert (tree.value <= tree.high[tree.klass]).all()
        assert not tree.exact


@pytest.mark.slow
def test_a_million_items_in_seconds(tmp_path):
    """Built and saved in seconds, and mapped, not read: generous limits, since machines are busy."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2048, (1_000_000, 3))
    spent = time.process_time()
    menu = Menu.of(
        Catalog.of(ids, sizes=[2048] * 3), words=[np.arange(2048)] * 3, columns={"new": rng.random(1_000_000) < 0.1}
    )
    menu.save(tmp_path / "items.menu")
    built = time.process_time() - spent
    spent = time.process_time()
    again = Menu.load(tmp_path / "items.menu")
    opened = time.process_time() - spent
    assert built < 20
    assert opened < 0.05
    rows = Plan.of(again, {"slots": 3, "objectives": [{"name": "new", "at_least": 2}]}).begin(8)
    while not at.finished(rows).all():
        rows = at.advance(again, rows, at.priced(again, rows, torch.from_numpy(rng.normal(size=(8, 2048)))).argmax(1))
    assert (rows.stand.gained[:, 0] >= 2).all()
