"""Splits hold out what they say, and nothing of it reaches what is learnt from."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdd.data.interactions import Interactions, Split
from spdd.data.split import at_time, k_core, leave_last, unknown


def world(rows, absolute=True):
    """Interactions of (user, item, time), in the order given."""
    events = pl.DataFrame(rows, schema={"user": pl.String, "item": pl.String, "time": pl.Int64}, orient="row")
    events = events.with_columns(mark=pl.int_range(pl.len())).sort("user", "time", maintain_order=True)
    events = events.with_columns(kind=pl.col("mark") % 3)
    items = events.select("item").unique().sort("item").with_columns(title=pl.col("item").str.to_uppercase(), kind=0)
    return Interactions("world", events, items, absolute=absolute, described=("kind",))


def told(split: Split, part):
    """{user: [item id or '?']} of a part."""
    rows = getattr(split, part)
    names = np.append(split.items.id, "?")
    return {str(u): names[i].tolist() for u, i in zip(rows.user, rows.lists(), strict=True)}


ANN = [("ann", c, t) for t, c in enumerate("abcde")]
BEN = [("ben", c, t) for t, c in enumerate("bd")]


def test_leave_last_by_eye():
    split = leave_last(world([*ANN, *BEN]))
    assert told(split, "train") == {"ann": ["a", "b", "c"], "ben": ["b", "d"]}  # ben has too few to be tested on
    assert told(split, "validation") == {"ann": ["d"]}
    assert told(split, "test") == {"ann": ["?"]}  # e is in no train row
    assert split.items.id.tolist() == ["a", "b", "c", "d"]
    assert split.items.attributes["title"].tolist() == ["A", "B", "C", "D"]
    assert unknown(split.test) == 1
    assert split.items.attributes["kind"].tolist() == [0, 2, 2, 0]  # of an item's first train event: b's is ben's
    assert list(split.train.extra) == ["mark"]
    assert told(leave_last(world([*ANN, *BEN]), 2), "train") == {"ann": ["a"], "ben": ["b", "d"]}


def test_ties_keep_the_order_of_the_file():
    rows = [("ann", c, 7) for c in "cab"] + [("ben", c, t) for t, c in enumerate("abc")]
    assert told(leave_last(world(rows)), "test") == {"ann": ["?"], "ben": ["c"]}
    assert told(leave_last(world(rows)), "train") == {"ann": ["c"], "ben": ["a"]}


def test_global_cut_by_eye():
    split = at_time(world([*ANN, *BEN, ("cat", "a", 3)]), validation_at=1, at=3)
    assert told(split, "train") == {"ann": ["a"], "ben": ["b"]}
    assert told(split, "validation") == {"ann": ["b", "?"], "ben": ["?"]}
    assert told(split, "test") == {"ann": ["?", "?"], "cat": ["a"]}
    assert split.history("test").lists()[1].tolist() == []  # cat is new


def test_share_holds_out_the_last():
    split = at_time(world([(f"u{t % 7}", f"i{t % 5}", t) for t in range(100)]), share=0.1)
    assert [len(getattr(split, p).item) for p in ("train", "validation", "test")] == [81, 9, 10]


def test_k_core_goes_on_until_nothing_falls_out():
    # Without c, ann has one event too few; without ann, b has.
    rows = [("ann", "b", 0), ("ann", "c", 1), ("ben", "b", 0), ("ben", "a", 1), ("cat", "a", 0), ("cat", "d", 1)]
    rows += [("dan", "a", 0), ("dan", "e", 1), ("ben", "e", 3)]
    kept = k_core(world(rows), 2, 2)
    assert kept.events["user"].unique().sort().to_list() == ["ben", "dan"]
    assert kept.items["item"].to_list() == ["a", "e"]
    same = k_core(kept, 2, 2)
    assert same.events.equals(kept.events)


def test_core_of_a_split_looks_at_train_alone():
    taken = {"ann": "abcd", "ben": "abca", "cat": "acba"}
    split = leave_last(world([(u, c, t) for u, row in taken.items() for t, c in enumerate(row)]), core=2)
    # c is seen three times, and once in train: it falls out there, and cat with it.
    assert told(split, "train") == {"ann": ["a", "b"], "ben": ["a", "b"]}
    assert told(split, "test") == {"ann": ["?"], "ben": ["a"]}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: leave_last(world(ANN), 0), "`n` must be a whole number of at least 1, got 0"),
        (lambda: leave_last(world(ANN), True), "`n` must be"),
        (lambda: leave_last(world(ANN), core=9), "leaves none of 5 with n=1 and core=9"),
        (lambda: leave_last(world(ANN), core=-1), "core of users must be a whole number"),
        (lambda: at_time(world(ANN), share=0.5), "`share` must be above 0 and below 0.5"),
        (lambda: at_time(world(ANN), share=float("nan")), "`share` must be"),
        (lambda: at_time(world(ANN), at=2.5), "`at` must be whole milliseconds"),
        (lambda: at_time(world(ANN), at=2, validation_at=3), "validation must begin before the test"),
        (lambda: at_time(world(ANN), at=-5, validation_at=-9), "times run from 0 to 4"),
        (lambda: at_time(world(ANN, absolute=False)), "Use `leave_last`"),
    ],
)
def test_front_door(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


# ---- nothing leaks ----------------------------------------------------------------------------------------------------

USERS, ITEMS = [f"u{i}" for i in range(5)], [f"i{i}" for i in range(8)]
ROWS = st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(ITEMS), st.integers(0, 20)), min_size=4, max_size=40)
OTHER = st.tuples(st.sampled_from([*ITEMS, "new", "a-first", "zz"]), st.integers(0, 50), st.integers(-9, 9))


def bits(split):
    """Everything a model may learn from, as bytes."""
    t = split.train
    arrays = [split.items.id, *split.items.attributes.values(), t.user, t.start, t.item, t.time, *t.extra.values()]
    return [(a.dtype, a.shape, a.tolist()) for a in arrays] + [split.items.fingerprint(), split.popularity().tolist()]


def spoiled(data, held, changes):
    """`data` with other items, later times and other marks in the events that `held` marks."""
    rows = data.events.with_columns(held=held).rows(named=True)
    last = max(r["time"] for r in rows)
    changed, at = [], 0
    for row in rows:
        if row.pop("held"):
            item, later, mark = changes[at % len(changes)]
            at += 1
            row |= {"item": item, "time": last + later if later > 25 else row["time"], "mark": mark, "kind": mark}
        changed.append(row)
    events = pl.DataFrame(changed, schema=data.events.schema)
    items = events.select("item").unique().sort("item").with_columns(title=pl.col("item").str.to_uppercase(), kind=9)
    return dataclasses.replace(data, events=events.sort("user", "time", maintain_order=True), items=items)


@given(ROWS, st.lists(OTHER, min_size=1, max_size=20), st.integers(1, 2), st.integers(0, 2))
def test_held_out_events_leave_no_trace_in_leave_last(rows, changes, n, core):
    data = world(rows)
    try:
        split = leave_last(data, n, core=core)
    except ValueError:
        return
    # The last n events and the n before, among users who have enough: they stay last whatever becomes of them.
    from_end = pl.len().over("user") - pl.int_range(pl.len()).over("user")
    held = data.events.select((pl.len().over("user") > 2 * n) & (from_end <= 2 * n)).to_series()
    assert bits(leave_last(spoiled(data, held, changes), n, core=core)) == bits(split)


@given(ROWS, st.lists(OTHER, min_size=1, max_size=20), st.integers(1, 20), st.integers(0, 5), st.integers(0, 2))
def test_held_out_events_leave_no_trace_in_a_global_cut(rows, changes, validation_at, gap, core):
    data = world(rows)
    cut = {"validation_at": validation_at, "at": validation_at + gap, "core": core}
    try:
        split = at_time(data, **cut)
    except ValueError:
        return
    held = data.events["time"] >= validation_at
    assert bits(at_time(spoiled(data, held, changes), **cut)) == bits(split)
    later = [*split.validation.time, *split.test.time]
    assert not later or split.train.time.max() < min(later)
    assert not len(split.test.time) or split.test.time.min() >= cut["at"] > split.validation.time.max(initial=-1)


@given(ROWS, st.integers(1, 2))
def test_every_event_is_in_one_part_and_numbers_mean_ids(rows, n):
    data = world(rows)
    split = leave_last(data, n)
    marks = np.concatenate([p.extra["mark"] for p in split[1:]])
    assert sorted(marks.tolist()) == list(range(len(rows)))
    names = dict(zip(data.events["mark"], data.events["item"], strict=True))
    for part in split[1:]:
        for number, mark in zip(part.item, part.extra["mark"], strict=True):
            known = names[mark] in split.items.id
            assert number == (split.items.id.tolist().index(names[mark]) if known else -1)
    assert (split.train.item >= 0).all()
    assert set(split.items.id[split.train.item]) == set(split.items.id)
