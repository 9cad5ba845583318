"""Run folders: what training keeps in them is what slates are made and judged by, and a run goes on as it began."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import spdd
from spdd.data import prepared
from spdd.data.interactions import Items, Sequences, Split
from spdd.item_columns import item_columns
from spdd.models import checkpoint
from spdd.trained import by_request, open_run, train_model

PEOPLE, ITEMS, DAY = 8, 12, 24 * 3_600_000


def part(random, day, each):
    events = PEOPLE * each
    time = np.sort(random.integers(day * DAY, (day + 2) * DAY, (PEOPLE, each)), axis=1).ravel()
    extra = {"action": random.integers(1, 4, events), "surface": random.integers(0, 2, events)}
    extra |= {name: random.choice([0, 1], events) for name in ("is_click", "long_view")}
    item = np.concatenate([random.choice(ITEMS, each, replace=False) for _ in range(PEOPLE)])
    return Sequences(np.array([f"p{p}" for p in range(PEOPLE)]), np.arange(PEOPLE + 1) * each, item, time, extra)


@pytest.fixture(scope="module")
def split():
    random = np.random.default_rng(0)
    attributes = {
        "author": np.array([f"a{i % 3}" for i in range(ITEMS)], dtype=object),
        "title": np.array([f"{['red', 'blue', 'green'][i % 3]} thing {i}" for i in range(ITEMS)], dtype=object),
    }
    items = Items(np.array([f"i{i:02}" for i in range(ITEMS)]), attributes)
    return Split(items, part(random, 0, 8), part(random, 2, 4), part(random, 4, 4))


TINY = {"epochs": 0, "width": 8, "layers": 1, "heads": 2}


@pytest.mark.parametrize("label", ["is_click", "long_view"])
def test_shelves_are_judged_by_the_label_they_were_trained_on(split, tmp_path, label):
    train_model("transact", split, tmp_path, {**TINY, "inner": 8, "label": label}, device="cpu")
    opened = open_run(tmp_path / "last.pt", split, device="cpu")
    rows = slice(0, PEOPLE)
    later = opened.asked(split, "test").later(rows)
    held = split.test
    for person, mine in enumerate(later):
        own = slice(held.start[person], held.start[person + 1])
        taken = np.where(held.extra[label][own] > 0, held.item[own], -1)
        assert np.array_equal(np.sort(mine), np.sort(taken))
    other = {"is_click": "long_view", "long_view": "is_click"}[label]
    differs = by_request(split, "test", label=other).later(rows)
    assert not all(np.array_equal(a, b) for a, b in zip(later, differs, strict=True))


def test_shelves_need_events_of_shelves_but_nothing_about_items(split, tmp_path):
    bare = split._replace(items=Items(split.items.id, {}))
    assert train_model("transact", bare, tmp_path / "bare", {**TINY, "epochs": 1, "inner": 8}, device="cpu").best
    plain = bare._replace(train=replace(bare.train, extra={}))
    with pytest.raises(ValueError, match=r"needs events with the columns action, surface, is_click"):
        train_model("transact", plain, tmp_path / "plain", TINY, device="cpu")


IDS = {**TINY, "method": "residual_kmeans", "levels": 2, "codes": 4, "text": ["title"]}


@pytest.mark.parametrize(
    "change", [{"codes": 3}, {"levels": 3}, {"method": "lsh"}, {"text": ["author"]}, {"apart": "token"}]
)
def test_a_run_goes_on_with_the_ids_it_began_with(split, tmp_path, change):
    train_model("lmrec", split, tmp_path, IDS, device="cpu")
    (name,) = change
    with pytest.raises(
        ValueError, match=rf"the ids in .* were made with other settings: {name} .* then, .* now.*--fresh"
    ):
        train_model("lmrec", split, tmp_path, {**IDS, **change}, device="cpu")
    train_model("lmrec", split, tmp_path, IDS, device="cpu")


def test_fresh_ids_may_be_others_and_must_fit_their_method(split, tmp_path):
    train_model("lmrec", split, tmp_path, IDS, device="cpu")
    train_model("lmrec", split, tmp_path, {**IDS, "codes": 3}, device="cpu", resume=False)
    with pytest.raises(
        ValueError, match=r"ids by 'lsh' have no setting 'codes'. There is: levels, bits, seed, centred\."
    ):
        train_model("lmrec", split, tmp_path, {**IDS, "method": "lsh"}, device="cpu", resume=False)


def test_ids_that_were_put_there_are_taken_unless_asked_for_others(split, tmp_path):
    train_model("lmrec", split, tmp_path, IDS, device="cpu")
    (tmp_path / "ids.json").unlink()
    with pytest.raises(ValueError, match=r"holds ids already, and nothing tells how they were made: leave out .*codes"):
        train_model("lmrec", split, tmp_path, IDS, device="cpu")
    train_model("lmrec", split, tmp_path, TINY, device="cpu")


def test_of_items_that_share_an_id_the_one_taken_most_often_comes_first(split, tmp_path):
    train_model("lmrec", split, tmp_path, {**IDS, "levels": 1, "beams": ITEMS}, device="cpu")
    opened = open_run(tmp_path / "last.pt", split, device="cpu", beams=ITEMS)
    popularity = split.popularity()
    items, logits = (x[0].tolist() for x in opened.model.propose(opened.model.start([[0]])))
    shared = [(popularity[a], popularity[b]) for a, b, p, q in zip(items, items[1:], logits, logits[1:]) if p == q]  # noqa: B905
    assert any(a > b for a, b in shared)
    assert all(a >= b for a, b in shared)


SMALL = {"epochs": 2, "width": 8, "heads": 2, "every": 1, "patience": 0}


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(folder):
    return checkpoint.load(folder / "last.pt").weights


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.usefixtures("one_thread")
def test_a_killed_sasrec_goes_on_to_the_weights_of_an_unbroken_one(split, tmp_path):
    """Killed as a machine would, at whatever step; then gone on with."""
    prepared.save(split, tmp_path / "data.npz")
    said = {**SMALL, "epochs": 100_000}
    words = [
        sys.executable,
        "-m",
        "spdd.cli",
        "train",
        "sasrec",
        tmp_path / "data.npz",
        "--out",
        tmp_path / "killed",
        "-q",
    ]
    words += ["--device", "cpu", *(x for name, value in said.items() for x in ("--set", f"{name}={value}"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(list(map(str, words)), env=environment, stderr=subprocess.PIPE)
    metrics, deadline = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + 240
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    stopped = checkpoint.load(tmp_path / "killed" / "last.pt").more["epoch"]
    train_model("sasrec", split, tmp_path / "killed", {**SMALL, "epochs": stopped + 2}, device="cpu")
    train_model("sasrec", split, tmp_path / "unbroken", {**SMALL, "epochs": stopped + 2}, device="cpu")
    one, other = weights(tmp_path / "killed"), weights(tmp_path / "unbroken")
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.usefixtures("one_thread")
def test_what_is_held_out_for_the_test_reaches_no_slate(split, tmp_path):
    """Neither weights nor the values objectives are made of nor what a decoder serves: only what slates are judged by."""
    turned = replace(split.test, item=(split.test.item + 5) % ITEMS, time=split.test.time + DAY)
    found = []
    for name, one in (("one", split), ("other", split._replace(test=turned))):
        train_model("sasrec", one, tmp_path / name, SMALL, device="cpu")
        opened = open_run(tmp_path / name, one, device="cpu")
        rare = (item_columns(one, ["popularity"])["popularity"] < 6).astype(float)
        asked, rows = opened.asked(one, "test"), slice(0, PEOPLE)
        decoder = spdd.SPDD([spdd.Objective("rare", value=rare, at_least=1)], slots=2)
        slate = decoder.generate(opened.model, asked.histories(rows), exclude="seen").numpy()
        found.append((weights(tmp_path / name), slate, asked.later(rows)))
    (before, slates, later), (after, again, judged) = found
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("items", "relevance", "gained", "dual", "status"):
        assert np.array_equal(getattr(slates, name), getattr(again, name))
    assert not all(np.array_equal(a, b) for a, b in zip(later, judged, strict=True))


@pytest.mark.parametrize("kind", ["sasrec", "transact", "lmrec"])
def test_the_page_names_every_setting(split, tmp_path, kind):
    with pytest.raises(ValueError, match="has no setting") as refused:
        train_model(kind, split, tmp_path / "run", {"no such thing": 1})
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text("utf-8")
    known = str(refused.value).partition("There is: ")[2].rstrip(".").split(", ")
    assert len(known) > 10
    assert [name for name in known if not re.search(rf"`{name}[`=]", page)] == []
