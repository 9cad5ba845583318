"""A split comes back from its file as it was, and nothing else is taken for one."""

import subprocess
import sys

import numpy as np
import pytest

from spdd.data import prepared
from spdd.data.interactions import Items, Sequences, Split


def column(*values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def rows(users, *items, **extra):
    """Sequences of the given item lists, a second apart."""
    start = np.cumsum([0, *map(len, items)])
    item = np.array([i for row in items for i in row], np.int64)
    time = np.arange(len(item)) * 1000
    return Sequences(np.array(users, str), start, item, time, {k: np.asarray(v) for k, v in extra.items()})


@pytest.fixture
def split():
    items = Items(
        np.array(["a", "b", "ä"]),
        {"title": column("Lamp", None, "Łódź"), "categories": column(["x", "y"], ["z", "y"], []), "year": np.arange(3)},
    )
    return Split(
        items,
        rows(["ann", "ben"], [0, 1], [2], rating=[5.0, 4.0, 3.5]),
        rows(["ann", "cat"], [2], [-1], rating=[1.0, 2.0]),
        rows(["ann", "ben"], [1], [0], rating=[1.0, 2.0]),
    )


def same(a, b):
    assert a.dtype == b.dtype
    assert a.tolist() == b.tolist()


def test_round_trip(split, tmp_path):
    prepared.save(split, tmp_path / "deep" / "s.npz", name="tiny", core=5)
    back = prepared.load(tmp_path / "deep" / "s.npz")
    same(back.items.id, split.items.id)
    assert back.items.fingerprint() == split.items.fingerprint()
    assert back.items.attributes.keys() == split.items.attributes.keys()
    for name, values in split.items.attributes.items():
        same(back.items.attributes[name], values)
    for part in prepared.PARTS:
        for name in ("user", "start", "item", "time"):
            same(getattr(getattr(back, part), name), getattr(getattr(split, part), name))
        same(getattr(back, part).extra["rating"], getattr(split, part).extra["rating"])
    assert prepared.about(tmp_path / "deep" / "s.npz") == {"name": "tiny", "core": 5}


def test_same_split_same_bytes(split, tmp_path):
    for name in ("a", "b"):
        prepared.save(split, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]  # and nothing left beside them


@pytest.mark.parametrize("keep", [0, 30, 0.5, 0.9, 0.999])
def test_truncated_file_is_refused(split, tmp_path, keep):
    path = tmp_path / "s.npz"
    prepared.save(split, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(ValueError, match=r"s\.npz' must be a split.*Prepare it again"):
        prepared.load(path)


def test_every_flipped_byte_is_refused_or_harmless(split, tmp_path):
    path = tmp_path / "s.npz"
    prepared.save(split, path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            back = prepared.load(path)
        except ValueError:
            continue
        assert back.items.fingerprint() == split.items.fingerprint()
        assert back.train.item.tolist() == split.train.item.tolist()


def test_another_npz_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.arange(3))
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "pickle.npz", format=np.array([{}], object))
    for name in ("other.npz", "one.npy", "pickle.npz"):
        with pytest.raises(ValueError, match="must be a split"):
            prepared.load(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s._replace(train=rows(["ann"], [9])), "names items that are not there"),
        (
            lambda s: s._replace(train=Sequences(s.train.user, s.train.start[:-1], s.train.item, s.train.time)),
            "rows of",
        ),
        (lambda s: s._replace(test=rows(["ann"], [1], rating=[1.0, 2.0])), "one value per event"),
        (lambda s: s._replace(items=Items(s.items.id[::-1], {})), "not those it was saved with"),
        (lambda s: s._replace(items=Items(s.items.id, {"year": np.arange(2)})), "one value per item"),
    ],
)
def test_inconsistent_split_is_refused(split, tmp_path, change, complaint):
    prepared.save(change(split), tmp_path / "s.npz")
    with pytest.raises(ValueError, match=complaint):
        prepared.load(tmp_path / "s.npz")


def test_history_is_all_that_was_before(split):
    before = split.history("test")
    assert [row.tolist() for row in before.lists()] == [[0, 1, 2], [2]]
    assert before.extra["rating"].tolist() == [5.0, 4.0, 1.0, 3.5]
    new = split.history("validation")
    assert [row.tolist() for row in new.lists()] == [[0, 1], []]
    assert split.popularity().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="'validation' or 'test'"):
        split.history("train")


def test_needs_numpy_alone():
    program = "import sys, spdd.data.prepared; print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
