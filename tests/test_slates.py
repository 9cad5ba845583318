"""From a trained model to a table of slates: whole, resumable, and with objectives named by what items are."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import spdd
from spdd.data import prepared
from spdd.data.interactions import Items, Sequences, Split
from spdd.item_columns import item_columns
from spdd.policy_file import policy_of
from spdd.slates import digest, slate_table
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


def slates(split, folder, *, asked, stop=None, batch=7, name="slates.parquet", part="test", weights="w", **more):
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
            policy, model(), split.items.id, columns, by_history(split, part), target, folder=folder / "parts",
            run={"weights": weights}, batch=batch, progress=told, **more,
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


def reshaped(split, **columns):
    """The split with other attributes."""
    return split._replace(items=Items(split.items.id, {**split.items.attributes, **columns}))


OTHERS = {
    "columns": lambda split: {"split": reshaped(split, new=np.roll(split.items.attributes["new"], 1))},
    "users": lambda split: {"split": split._replace(train=replace(split.train, item=split.train.item[::-1].copy()))},
    "policy": lambda split: {"asked": {**FLOOR, "settings": {"rate": 0.1}}},
    "batch": lambda split: {"batch": 6},
    "compare": lambda split: {"compare": False},
    "weights": lambda split: {"weights": "v"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_would_change_slates_makes_another_run(split, tmp_path, what):
    """Same names, other answers: values of columns and histories count, not only what they are called."""
    with pytest.raises(PowerCutError):
        slates(split, tmp_path, asked=FLOOR, stop=1)
    changed = {"split": split, "asked": FLOOR, **OTHERS[what](split)}
    with pytest.raises(ValueError, match=rf"beginning of another run, with other .*{what}.*rm -r"):
        slates(changed.pop("split"), tmp_path, **changed)


def test_what_users_must_not_get_makes_another_run(split, tmp_path):
    asked = by_history(split, "test")
    told = []
    for exclude in ("seen", [[0]] * USERS, torch.eye(USERS, ITEMS) > 0, torch.eye(USERS, ITEMS) < 1):
        barred = asked._replace(exclude=lambda rows, exclude=exclude: exclude if exclude == "seen" else exclude[rows])
        told.append(digest(barred.user, barred.histories(slice(0, 7)), barred.exclude(slice(0, 7))))
    assert len(set(told)) == 4


def test_a_digest_tells_things_apart():
    many = [
        (), ([],), ([], []), ([[]],), (None,), ("",), ("1",), (1,), (1.0,), ("a", "b"), ("ab",), (["a", "b"],),
        (np.array([1, 2]),), (np.array([[1, 2]]),), (np.array([1.0, 2.0]),), (np.array([1, 2], dtype=np.int32),),
        (np.array(["a"]),), (np.array(["a"], dtype=object),),
    ]  # fmt: skip
    assert len({digest(*one) for one in many}) == len(many)
    assert digest(torch.tensor([1, 2])) == digest(np.array([1, 2]))


def test_a_folder_of_something_else_is_left_alone(split, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds something else. Move it away"):
        slates(split, tmp_path, asked=FLOOR)
    assert (tmp_path / "parts" / "thesis.txt").read_text() == "years of work"


def test_a_run_that_decoded_nothing_leaves_nothing(split, tmp_path):
    broken = spdd.FromCallable(lambda sequences: torch.full((len(sequences), ITEMS), torch.nan))
    policy, asked = policy_of(FLOOR), by_history(split, "test")
    columns = item_columns(split, ["new"])
    with pytest.raises(ValueError, match="nan"), Target(str(tmp_path / "x.csv"), "csv") as target:
        slate_table(policy, broken, split.items.id, columns, asked, target, folder=tmp_path / "parts", run={})
    assert not list(tmp_path.iterdir())


def test_nobody_to_serve_is_said(split, tmp_path):
    nobody = by_history(split, "test").first(0)
    with (
        pytest.raises(ValueError, match="no user to make a slate for"),
        Target(str(tmp_path / "x.csv"), "csv") as target,
    ):
        slate_table(
            policy_of(FLOOR), model(), split.items.id, item_columns(split, ["new"]), nobody, target,
            folder=tmp_path / "parts", run={},
        )  # fmt: skip


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


@pytest.mark.parametrize("which", ["items", "prepared", "run"])
def test_nothing_that_is_read_is_written_over(split, tmp_path, capsys, which):
    """Refused before anything is opened, whatever stands in the files."""
    mine = tmp_path / "mine.csv"
    mine.write_text("item,margin\n")
    words = {"run": tmp_path / "run", "prepared": tmp_path / "data.npz", "items": tmp_path / "items.csv", which: mine}
    code, shown = run("slate", words["run"], words["prepared"], "--items", words["items"], "--out", mine, capsys=capsys)
    assert (code, mine.read_text()) == (2, "item,margin\n")
    assert "--out must be another file than" in shown.err


@pytest.mark.parametrize("option", ["users", "batch"])
def test_counts_of_nothing_are_refused(tmp_path, capsys, option):
    words = ("slate", tmp_path, tmp_path / "d.npz", "--out", tmp_path / "x.csv", f"--{option}", 0)
    code, shown = run(*words, capsys=capsys)
    assert (code, shown.err) == (2, f"spdd: --{option} must be at least 1, got 0.\n")


@pytest.mark.parametrize(
    ("begun", "fresh", "told"),
    [
        (False, False, "nothing was written."),
        (True, False, "what is done so far is in '{}'; the same command goes on from there."),
        (True, True, "what is done so far is in '{}'; the same command without --fresh goes on from there."),
    ],
)
def test_who_stops_training_is_told_what_is_left(split, tmp_path, capsys, monkeypatch, begun, fresh, told):
    prepared.save(split, tmp_path / "data.npz")

    def stopped(*given, **more):
        if begun:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "last.pt").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr("spdd.trained.train_model", stopped)
    words = ("train", "sasrec", tmp_path / "data.npz", "--out", tmp_path / "run", *["--fresh"] * fresh)
    code, shown = run(*words, capsys=capsys)
    assert code == 130
    assert shown.err == f"spdd: stopped; {told.format(tmp_path / 'run' / 'last.pt')}\n"


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


@pytest.fixture(scope="module")
def trained(split, tmp_path_factory):
    from spdd.trained import train_model

    folder = tmp_path_factory.mktemp("trained")
    prepared.save(split, folder / "data.npz")
    train_model("sasrec", split, folder / "run", {"epochs": 1, "width": 20, "heads": 2}, device="cpu")
    return folder


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--part", "foo"], "`part` must be one of test, validation, all, got 'foo'."),
        (["-o", "artist>=3"], "objective 'artist' counts numbers, and column 'artist' holds labels."),
        (["--beams", "4"], "`beams` is for models that spell items (lmrec)"),
        (["--device", "cuda:77"], "device 'cuda:77' cannot be used here:"),
        (["--device", "gpu"], "device 'gpu' cannot be used here:"),
    ],
)
def test_wrong_words_are_answered_plainly(trained, tmp_path, capsys, words, complaint):
    words = ["slate", trained / "run", trained / "data.npz", "--out", tmp_path / "x.csv", "--device", "cpu", *words]
    code, shown = run(*words, capsys=capsys)
    assert code == 2
    assert shown.err.startswith(f"spdd: {complaint}")
    assert not list(tmp_path.iterdir())


def test_other_files_where_a_run_or_split_should_be(trained, tmp_path, capsys):
    (tmp_path / "it.csv").write_text("user,item\n")
    code, shown = run("train", "sasrec", tmp_path / "it.csv", "--out", tmp_path / "run", capsys=capsys)
    assert code == 2
    assert "must be a split prepared by `spdd data`, and cannot be read as one: it is another kind of file" in shown.err
    code, shown = run("train", "sasrec", trained / "data.npz", "--out", tmp_path / "it.csv", capsys=capsys)
    assert code == 2
    assert "a run needs a folder, and" in shown.err
    code, shown = run("slate", trained / "run", trained / "data.npz", "--out", tmp_path / "a.xlsx", capsys=capsys)
    assert shown.err.endswith("got '.xlsx'.\n")


def test_a_split_without_validation_trains_and_says_so(split, tmp_path, capsys):
    nobody = Sequences(np.array([], dtype=str), np.array([0]), np.array([], dtype=int), np.array([], dtype=int), {})
    prepared.save(split._replace(validation=nobody), tmp_path / "data.npz")
    small = ("--set", "epochs=2", "--set", "width=20", "--set", "heads=2", "--device", "cpu")
    code, shown = run("train", "sasrec", tmp_path / "data.npz", "--out", tmp_path / "run", *small, capsys=capsys)
    assert code == 0
    assert "no validation" in shown.err


def test_one_process_of_several_speaks(split, tmp_path, capsys, monkeypatch):
    prepared.save(split, tmp_path / "data.npz")
    monkeypatch.setenv("RANK", "1")
    small = ("--set", "epochs=1", "--set", "width=20", "--set", "heads=2", "--device", "cpu")
    code, shown = run("train", "sasrec", tmp_path / "data.npz", "--out", tmp_path / "run", *small, capsys=capsys)
    assert (code, shown.err) == (0, "")
