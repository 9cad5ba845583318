"""The tour, on a tenth of its users: what it writes, what its table says, and what it does without a picture."""

import re
import shutil
import sys
import types

import numpy as np
import polars as pl
import pytest

from spdd import tour
from spdd.report import charts

SIZE = {"users": 200, "candidates": 80, "items": 240}


@pytest.fixture(scope="module")
def world():
    return tour.made_world(**SIZE, seed=7)


@pytest.fixture(scope="module")
def results(world):
    return {r.title: r for r in tour.judged(world, tour.entries(world, seed=7))}


def feasible(world):
    return ((world.new * ~world.barred).sum(1) >= tour.FLOOR).mean()


def test_tour_writes_what_it_says(world, tmp_path, capfd):
    pytest.importorskip("altair")
    out = tmp_path / "made" / "demo"
    tour.run(out, **SIZE)
    said = capfd.readouterr()
    for name in (*tour.FILES, "decoders.png"):
        assert (out / name).stat().st_size > 1000
        assert name in said.out
    assert f"$ spdd rerank {out / 'candidates.parquet'} --objective 'new creators>=3'" in said.out
    assert "200 users, 2,000 of 2,000 slots filled" in said.err  # the command's own summary
    assert "\x1b" not in said.out

    png = (out / "decoders.png").read_bytes()
    wide, high = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert 1500 < wide < 4000
    assert 800 < high < 2000
    svg = (out / "decoders.svg").read_text("utf-8")
    assert all(f">{name}<" in svg for name in ("WA", "SPDD", "SPDD printed", "MMR", "DPP", "Calibrated"))

    numbers = pl.read_csv(out / "decoders.csv")
    for line in ("Greedy", "WA, weight 0.5", "EPR, weight 0.6 of 30", "MustFill, floor 3", "ProviderMaxMin, 30% due"):
        name, _, setting = line.partition(", ")
        row = numbers.filter(pl.col("decoder") == name, pl.col("setting").fill_null("") == setting)
        assert re.search(rf"^{line} +{row['slates with 3'].item():.1%} ", said.out, re.MULTILINE)

    # `spdd rerank`, from the table on disk, serves what the tour's own SPDD served.
    served = pl.read_parquet(out / "slates.parquet")
    entry = next(e for e in tour.entries(world, 7) if (e.name, e.setting) == ("SPDD", "floor 3"))
    assert served["item"].to_list() == [f"t{j:04}" for j in entry.serve(world).ravel()]
    assert (served["status"] == "met").mean() == feasible(world)


def test_failed_command_is_no_success(tmp_path, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(tour.subprocess, "run", lambda *args, **kwargs: types.SimpleNamespace(returncode=2))
    with pytest.raises(RuntimeError, match="exit code 2"):
        tour.rerank(tmp_path / "c.parquet", tmp_path / "s.parquet", Console())


def test_world_is_as_described(world):
    assert 0.1 < world.new.mean() <= 0.12
    assert ((world.margin >= 0) & (world.margin <= 1)).all()
    assert (~world.barred).sum(1).tolist() == [SIZE["candidates"]] * SIZE["users"]
    again = tour.made_world(**SIZE, seed=7)
    assert all(np.array_equal(a, b) for a, b in zip(world, again, strict=True))
    too_low = (np.log(world.chance / (1 - world.chance)) - world.score) @ world.new / world.new.sum()
    assert too_low.mean() > 0.1


def test_candidates_read_as_described(world, tmp_path):
    tour.write_candidates(world, tmp_path / "c.parquet")
    table = pl.read_parquet(tmp_path / "c.parquet")
    assert table.columns == ["user", "item", "score", "genre", "artist", "new creators", "margin", "click chance"]
    assert len(table) == SIZE["users"] * SIZE["candidates"]
    assert table.equals(table.sort("user", "score", descending=[False, True], maintain_order=True))
    assert table.group_by("artist").agg(pl.col("new creators").n_unique())["new creators"].max() == 1


def test_who_promises_keeps_it(world, results):
    for title in ("MustFill, floor 3", "SPDD, floor 3", "SPDD, floor 5"):
        assert results[title].met == feasible(world)


def test_numbers_hang_together(results):
    greedy = results["Greedy"]
    assert greedy.given_up == 0
    for r in results.values():
        assert r.given_up >= 0  # nobody has more score than greedy
        assert 0 <= r.met <= 1
        assert 0 <= r.on_new <= r.clicks.mean()
        assert np.isclose(r.change[0], r.clicks.mean() - greedy.clicks.mean())
    for title in ("WA, weight 0", "SPDD, floor 0"):
        assert np.array_equal(results[title].clicks, greedy.clicks)


def test_what_the_findings_claim_is_so(world, results):
    ours, quota = results["SPDD, floor 3"], results["MustFill, floor 3"]
    items = {r.title: np.sort(r.entry.serve(world), 1) for r in (ours, quota)}
    assert np.array_equal(items[ours.title], items[quota.title])
    assert ours.on_new > quota.on_new
    bandits = [results[name].entry.serve(world) for name in ("BanditUCB", "BanditTS")]
    held = world.new[bandits[0]]
    assert np.array_equal(*bandits)
    assert (np.diff(held, axis=1) <= 0).all()  # all new creators there are, then the others


def test_what_the_picture_claims_is_so():
    """Of the world it shows."""
    world = tour.made_world(users=2000, candidates=200, items=600, seed=7)
    contest = [e for e in tour.entries(world, seed=7) if e.name in ("Greedy", "WA", "SPDD", "SPDD printed", "MustFill")]
    results = {r.title: r for r in tour.judged(world, contest)}
    weights = [r for r in results.values() if r.entry.name == "WA"]
    near = next(r for r in weights if r.met > 0.95)
    for title in ("SPDD, floor 3", "MustFill, floor 3"):
        assert results[title].change[0] > near.change[0] / 3  # both are negative
    share, change = [r.share for r in weights], [r.change[0] for r in weights]
    for title in ("SPDD, floor 2", "SPDD, floor 3", "SPDD, floor 5"):
        r = results[title]
        assert -0.05 < r.change[0] - np.interp(r.share, share, change) < 0


def test_findings_hide_no_winner(results):
    said = tour.findings(list(results.values()))
    listed = [r for r in results.values() if r.entry.listed]
    assert max(listed, key=lambda r: r.clicks.mean()).title in said[0]
    best = max(r.met for r in listed)
    assert max((r for r in listed if r.met == best), key=lambda r: r.clicks.mean()).title in said[1]


def test_without_the_extra_all_but_the_picture(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tour, "rerank", lambda table, slates, console: shutil.copy(table, slates))
    monkeypatch.setitem(sys.modules, "altair", None)
    tour.run(tmp_path, users=20, candidates=60, items=120)
    said = capfd.readouterr().out
    assert "pip install 'spdd[report]'" in said
    assert "decoders.svg" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates.parquet", "decoders.csv", "slates.parquet"]


def test_labels_stand_clear_of_each_other():
    texts = [charts.Text("a decoder", "", False, 200 + 20 * i, 200) for i in range(8)]
    boxes = [box for _, box in charts.placed(texts, [charts.Box(t.x, t.y, 10, 10) for t in texts])]
    assert len(boxes) == len(texts)
    assert not any(a.overlap(b) for i, a in enumerate(boxes) for b in boxes[:i])
    for box in boxes:
        assert box.x - box.wide / 2 >= 0
        assert box.x + box.wide / 2 <= charts.WIDTH
