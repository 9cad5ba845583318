"""`spdd data` writes a file that can be trained on, and a screen that says what became of the raw ones."""

import re

import numpy as np
import pytest

from spdd.data import prepared
from spdd.data.command import describe, prepare


@pytest.fixture
def raw(tmp_path):
    rows = [f"{u},{(u * u + t) % 6},{4 + t % 2},{1000 * t + u}" for u in range(1, 9) for t in range(6)]
    (tmp_path / "ratings.csv").write_text(
        "\n".join(["userId,movieId,rating,timestamp", *rows, rows[0], "1,x", "1,2,3,-4"])
    )
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n0,Nil (1999),Drama|Comedy\n1,One,(no genres listed)\n")
    return tmp_path


def test_prepared_file_and_screen(raw, tmp_path):
    out = tmp_path / "made" / "m.npz"
    heard = []
    summary = prepare("movielens", raw, out, n=2, core=1, most_bad=0.1, progress=heard.append)
    split = prepared.load(out)
    assert summary.fingerprint == split.items.fingerprint()
    assert summary.parts["test"] == (8, 16)
    assert sum(heard) == sum(f.stat().st_size for f in raw.glob("*.csv"))
    assert prepared.about(out)["core"] == [1, 1]
    screen = describe(summary)
    for said in (
        "movielens: 51 events read in", "skipped events: 1 negative time, 1 too few fields, 1 duplicate",
        "2 descriptions of items read", "held out: the last 2 of each user", "core: 1 per user, 1 per item, of train events",
        f"catalog {summary.fingerprint}", "genres ", "100.0000%",
    ):  # fmt: skip
        assert said in screen, screen
    assert len(screen.splitlines()) < 20
    assert max(map(len, screen.splitlines())) <= 120
    assert re.search(r"^test +8 +16$", screen, re.M)


def test_cut_at_a_moment(raw, tmp_path):
    summary = prepare("movielens", raw, tmp_path / "m.npz", split="time", at=5_000_000, most_bad=0.1)
    assert summary.parts["test"][1] == 8
    assert "held out: from 1970-01-01 01:23:21 UTC on" in describe(summary)


def test_core_of_all_or_of_train(tmp_path):
    taken = {"ann": "abcd", "ben": "abca", "cat": "acba"}
    rows = [f"{u},{c},{t}" for u, row in taken.items() for t, c in enumerate(row)]
    (tmp_path / "t.csv").write_text("\n".join(["user,item,time", *rows]))
    train = prepare("table", tmp_path / "t.csv", tmp_path / "a.npz", core=2)
    every = prepare("table", tmp_path / "t.csv", tmp_path / "b.npz", core=2, core_of="all")
    assert prepared.load(train.out).items.id.tolist() == ["a", "b"]
    assert prepared.load(every.out).items.id.tolist() == ["a", "b", "c"]
    assert "of all events" in describe(every)


def test_same_input_same_file(raw, tmp_path):
    for name in ("a.npz", "b.npz"):
        prepare("movielens", raw, tmp_path / name, most_bad=0.1)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_refusal_leaves_the_old_file(raw, tmp_path):
    out = tmp_path / "m.npz"
    prepare("movielens", raw, out, most_bad=0.1)
    before = out.read_bytes()
    with pytest.raises(ValueError, match="may be malformed"):
        prepare("movielens", raw, out)
    assert out.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kind": "netflix"}, "`kind` must be one of amazon, kuairand"),
        ({"split": "random"}, "`split` must be one of last, time, got 'random'"),
        ({"core_of": "test"}, "`core_of` must be one of train, all"),
        ({"at": 5}, "Say split='time'"),
        ({"out": "m.parquet"}, "must end in .npz"),
    ],
)
def test_front_door(raw, tmp_path, options, complaint):
    given = {"kind": "movielens", "path": raw, "out": tmp_path / "m.npz"} | options
    with pytest.raises(ValueError, match=complaint):
        prepare(**given)


@pytest.mark.real_data
def test_public_sets(shared_data, tmp_path):
    summary = prepare("amazon", shared_data / "amazon-sports", tmp_path / "a.npz", core=5, core_of="all")
    assert summary.kept[0] == 35_598
    assert summary.parts["test"] == (35_598, 35_598)
    split = prepared.load(tmp_path / "a.npz")
    assert split.items.attributes["categories"][0] == [
        "Hunting & Fishing",
        "Hunting",
        "Gun Maintenance",
        "Gunsmithing Tools",
    ]
    assert np.diff(split.train.start).min() >= 3


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        ("movielens", {"foo": 1}, r"the loader 'movielens' has no setting 'foo'\. There is: name\."),
        ("table", {"usr": "u"}, r"no setting 'usr'\. There is: user, item, time, unit, items, attributes, name\."),
        ("kuairand", {"actions": "yes"}, r"setting 'actions' of the loader 'kuairand' must be like False, got 'yes'"),
    ],
)
def test_settings_a_loader_does_not_take_are_refused(raw, tmp_path, kind, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        prepare(kind, raw, tmp_path / "m.npz", options=options)


def test_a_folder_as_it_was_unpacked_may_have_its_files_in_data(raw, tmp_path):
    (tmp_path / "ml" / "data").mkdir(parents=True)
    for file in raw.glob("*.csv"):
        file.rename(tmp_path / "ml" / "data" / file.name)
    assert prepare("movielens", tmp_path / "ml", tmp_path / "m.npz", most_bad=0.1).read == (8, 6, 48)


def test_a_split_that_holds_out_nobody_is_told(raw, tmp_path):
    screen = describe(prepare("movielens", raw, tmp_path / "m.npz", n=5, most_bad=0.1))
    assert "warning: no user is left for validation and test: nothing decides when to stop training" in screen
    assert "warning" not in describe(prepare("movielens", raw, tmp_path / "m.npz", most_bad=0.1))
