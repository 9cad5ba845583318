"""From a trained model to a table of slates: whole, resumable, and with objectives named by what items are."""

import numpy as np
import polars as pl
import pytest
import torch

import spdd
from spdd.data import prepared
from spdd.data.interactions import Items, Sequences, Split
from spdd.item_columns import item_columns
from spdd.policy_file import policy_of
from spdd.slates import slate_table
from spdd.table import Target
from spdd.trained import by_history

USERS, ITEMS = 30, 40


def sequences(random, least, most):
    sizes = random.integers(least, most, USERS)
    start = np.concatenate([[0], sizes.cumsum()])
    items = np.concatenate([random.choice(ITEMS, n, replace=False) for n in sizes])
    return Sequences(np.array([f"u{u:02}" for u in range(USERS)]), start, items, np.arange(start[-1]), {})


@pytest.fixture(scope="module")
def split():
    random = np.random.default_rng(0)
    kinds = np.empty(ITEMS, dtype=object)
    kinds[:] = [[["Cycling"], ["Camping", "Cycling"], [], None][i % 4] for i in range(ITEMS)]
    attributes = {
        "new": (np.arange(ITEMS) % 5 == 0).astype(np.float64),
        "categories": kinds,
        "artist": np.array([f"a{i % 7}" for i in range(ITEMS)], dtype=object),
    }
    items = Items(np.array([f"i{i:02}" for i in range(ITEMS)]), attributes)
    return Split(items, sequences(random, 3, 9), sequences(random, 1, 2), sequences(random, 1, 2))


def model():
    """What was just shown moves the scores."""
    table = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return spdd.FromCallable(lambda sequences: table[sequences[:, -1].clamp_min(0)] @ table.T)


class PowerCutError(Exception):
    pass


def slates(split, folder, *, asked, stop=None, batch=7, name="slates.parquet"):
    """The table of slates, and the summary. stop: after so many batches, as a power cut would"""
    policy = policy_of({"slots": 4, **asked})
    done = []

    def told(users):
        done.append(users)
        if len(done) == stop:
            raise PowerCutError

    columns = item_columns(split, policy.columns)
    with Target(str(folder / name), "parquet") as target:
        summary = slate_table(
            policy, model(), split.items.id, columns, by_history(split, "test"), target, folder=folder / "parts",
            run={"weights": "w"}, batch=batch, progress=told,
        )  # fmt: skip
    return pl.read_parquet(folder / name), summary


FLOOR = {"objectives": [{"name": "new", "at_least": 2}]}
TRAFFIC = {"objectives": [{"name": "new", "at_least": 1.5, "per": "traffic"}]}


def test_every_user_gets_a_slate_of_unseen_items_that_keeps_the_floor(split, tmp_path):
    frame, summary = slates(split, tmp_path, asked=FLOOR)
    assert frame["user"].unique(maintain_order=True).to_list() == split.test.user.tolist()
    assert summary.users == USERS
    assert summary.status.tolist() == [USERS, 0, 0]
    seen = dict(zip(split.test.user.tolist(), split.history("test").lists(), strict=True))
    for (user,), rows in frame.group_by("user"):
        assert rows["slot"].to_list() == [1, 2, 3, 4]
        assert rows["new"].sum() >= 2
        assert not set(rows["item"]) & {f"i{i:02}" for i in seen[user]}


@pytest.mark.parametrize("asked", [FLOOR, TRAFFIC], ids=["slate", "traffic"])
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_that_was_stopped_ends_as_an_unbroken_one(split, tmp_path, asked, stop):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    whole, counts = slates(split, tmp_path / "one", asked=asked)
    with pytest.raises(PowerCutError):
        slates(split, tmp_path / "two", asked=asked, stop=stop)
    assert not (tmp_path / "two" / "slates.parquet").exists()
    resumed, again = slates(split, tmp_path / "two", asked=asked)
    assert resumed.equals(whole)
    assert again.objectives == counts.objectives
    assert (again.relevance, again.greedy) == (counts.relevance, counts.greedy)


def test_finished_batches_are_not_decoded_again(split, tmp_path):
    with pytest.raises(PowerCutError):
        slates(split, tmp_path, asked=FLOOR, stop=3)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("*.arrow")}
    slates(split, tmp_path, asked=FLOOR)
    assert len(before) == 3
    assert all((tmp_path / "parts" / name).stat().st_mtime_ns == when for name, when in before.items())


def test_the_beginning_of_another_run_is_refused(split, tmp_path):
    with pytest.raises(PowerCutError):
        slates(split, tmp_path, asked=FLOOR, stop=1)
    with pytest.raises(ValueError, match=r"holds the beginning of another run.*rm -r"):
        slates(split, tmp_path, asked=TRAFFIC)


def test_columns_are_attributes_labels_and_popularity(split, tmp_path):
    names = ["new", "categories=Cycling", "categories=Camping|Cycling", "artist", "popularity"]
    found = item_columns(split, names)
    assert found["categories=Cycling"].tolist() == [float(i % 4 < 2) for i in range(ITEMS)]
    assert found["categories=Camping|Cycling"].tolist() == found["categories=Cycling"].tolist()
    assert found["artist"][8] == "a1"
    assert found["popularity"].sum() == len(split.train.item)
    own = pl.DataFrame({"item": split.items.id[::-1], "margin": np.arange(ITEMS, dtype=float)})
    own.write_csv(tmp_path / "own.csv")
    assert item_columns(split, ["margin"], tmp_path / "own.csv")["margin"].tolist() == list(range(ITEMS))[::-1]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("newt", "items have no column 'newt'. Did you mean 'new'"),
        ("categories=Cyclng", "no item has the label 'Cyclng' in 'categories'. Did you mean 'Cycling'"),
        ("categories", "column 'categories' holds lists of labels. Ask for one of them"),
    ],
)
def test_columns_that_are_not_there_are_named_with_what_is(split, name, complaint):
    with pytest.raises(ValueError, match=complaint):
        item_columns(split, [name])


def test_a_table_of_values_must_fit_the_items(split, tmp_path):
    path = tmp_path / "own.csv"
    pl.DataFrame({"item": ["i00", "i00"], "x": [1.0, 2.0]}).write_csv(path)
    with pytest.raises(ValueError, match="names item 'i00' twice"):
        item_columns(split, ["x"], path)
    pl.DataFrame({"item": ["i00"], "x": [1.0]}).write_csv(path)
    with pytest.raises(ValueError, match="has no number in 'x' for 39 of 40 items, 'i01' for one"):
        item_columns(split, ["x"], path)
    pl.DataFrame({"id": ["i00"]}).write_csv(path)
    with pytest.raises(ValueError, match="must have a column 'item', and has id"):
        item_columns(split, ["x"], path)


def run(*words, capsys):
    from spdd import cli

    code = 0
    try:
        cli.app(list(map(str, words)), prog_name="spdd")
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr()


def test_train_then_slate_from_the_command_line(split, tmp_path, capsys):
    prepared.save(split, tmp_path / "data.npz")
    small = ("--set", "epochs=1", "--set", "width=20", "--set", "heads=2", "--device", "cpu")
    code, shown = run("train", "sasrec", tmp_path / "data.npz", "--out", tmp_path / "run", *small, capsys=capsys)
    assert code == 0, shown.err
    assert "best epoch" in shown.err
    words = (
        "slate",
        tmp_path / "run",
        tmp_path / "data.npz",
        "-k",
        4,
        "--device",
        "cpu",
        "--out",
        tmp_path / "out.csv",
    )
    code, shown = run(*words, "-o", "categories=Cycling>=50%", "--at-most-per", "artist<=1", capsys=capsys)
    assert code == 0, shown.err
    assert "30 users, 120 of 120 slots filled" in shown.err
    frame = pl.read_csv(tmp_path / "out.csv")
    assert frame.group_by("user").agg(pl.col("categories=Cycling").sum())["categories=Cycling"].min() >= 2
    assert not list(tmp_path.glob("*.parts"))
    code, shown = run(*words, "-o", "categories=Cyclng>=50%", capsys=capsys)
    assert code == 2
    assert shown.err.startswith("spdd: no item has the label")


def test_a_model_of_other_items_is_refused(split, tmp_path, capsys):
    prepared.save(split, tmp_path / "data.npz")
    small = ("--set", "epochs=1", "--set", "width=20", "--set", "heads=2", "--device", "cpu")
    assert run("train", "sasrec", tmp_path / "data.npz", "--out", tmp_path / "run", *small, capsys=capsys)[0] == 0
    others = split._replace(items=Items(np.array([f"j{i:02}" for i in range(ITEMS)]), split.items.attributes))
    prepared.save(others, tmp_path / "others.npz")
    code, shown = run("slate", tmp_path / "run", tmp_path / "others.npz", "--out", tmp_path / "out.csv", capsys=capsys)
    assert code == 2
    assert split.items.fingerprint() in shown.err
    assert "Traceback" not in shown.err
