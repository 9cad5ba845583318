"""The whole story, on few listeners: a page with every act, the A/B test in it, and the same on a table of one's own."""

import json

import numpy as np
import polars as pl
import pytest

from spdd import demo
from spdd.data.listeners import PLAYED, ListenerWorld

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch):
    pytest.importorskip("altair")
    monkeypatch.setattr(demo, "MODEL", {**demo.MODEL, "epochs": 1, "width": 8})
    monkeypatch.setattr(demo, "PRICES", (0.75, 4.3))
    monkeypatch.setattr(demo, "ASKED", (0.3,))
    monkeypatch.setattr(demo, "SQUEEZED", (0.3,))
    monkeypatch.setattr(demo, "VISITS", 1)


def test_the_story_ends_with_a_report(small, tmp_path, capfd):
    path = demo.run(tmp_path, users=120, workers=1)
    said = capfd.readouterr().out
    assert str(path) in said
    assert "In every slate" in said
    text = path.read_text("utf-8")
    for word in ("What a floor in every slate costs", "Slot by slot", "An A/B test on the same listeners", "spdd demo"):
        assert word in text
    records = [json.loads(line) for line in (tmp_path / "sweep" / "records.jsonl").read_text().splitlines()]
    assert {r["curve"] for r in records} >= {"WA", "EPR", "MB-UCB", "MB-TS", "SPDD as printed", "SPDD by default"}
    assert all(r["metrics"]["attained"] == 1 for r in records if r["curve"] == "SPDD by default")


def test_a_table_of_ones_own(small, tmp_path):
    random = np.random.default_rng(0)
    user = np.repeat(np.arange(40), 9)
    events = {"user": user, "item": random.integers(0, 50, user.size), "time": np.arange(user.size)}
    pl.DataFrame({**events, "artist": events["item"] // 5}).write_csv(tmp_path / "mine.csv")
    path = demo.run(tmp_path / "out", data=tmp_path / "mine.csv", workers=1)
    text = path.read_text("utf-8")
    assert "long-tail items" in text
    assert "A/B test" not in text
    on = demo.of_data(tmp_path / "mine.csv", "artist=3>=2")
    assert (on.floor, on.value.sum()) == (2.0, 5)


def test_a_table_that_nobody_can_be_judged_by_is_refused(tmp_path):
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [1, 2]}).write_csv(tmp_path / "short.csv")
    with pytest.raises(ValueError, match="three events"):
        demo.of_data(tmp_path / "short.csv", None)


def test_sessions_are_cut_without_a_leak():
    world = ListenerWorld(users=30, items=60)
    log = world.log()
    split = demo.by_session(world, log)
    took = log.extra["action"] == PLAYED
    assert sum(len(part.item) for part in (split.train, split.validation, split.test)) == took.sum()
    for user, later in zip(split.test.user, split.test.start[:-1], strict=True):
        row = np.searchsorted(split.train.user, user)
        if row < len(split.train.user) and split.train.user[row] == user:
            own = split.train.time[split.train.start[row] : split.train.start[row + 1]]
            assert own.max() < split.test.time[later]
