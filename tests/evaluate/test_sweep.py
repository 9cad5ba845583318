"""Sweeps give the same points whoever computes them and however often they are killed, and repeat none."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import spdd
from spdd.evaluate import grid
from spdd.evaluate.metrics import measure
from spdd.evaluate.sweep import Point, key_of, read, sweep, together

sys.path.insert(0, str(Path(__file__).parent))
import worlds

FEW = worlds.few()[:4]


def without_time(folder):
    """Everything a sweep left, but for the seconds it took."""
    found = {p.name: p.read_bytes() for p in (folder / "points").glob("*.npz")}
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return found, [{k: v for k, v in r.items() if k != "seconds"} for r in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    points = grid.points(2.0, worlds.SLOTS, seeds=(0, 1), asked=(0.2, 0.6), prices=(0.3, 3.0))
    return folder, points, sweep(worlds.bench, points, folder, batch=16)


def test_every_decoder_of_the_comparison_has_its_points(whole):
    folder, points, records = whole
    swept = read(folder)
    assert swept.records == records
    assert [r["curve"] for r in records] == [p.curve for p in points]
    for name in ("Greedy", "must-fill", "WA", "EPR", "MB-UCB", "MB-TS", "SPDD as printed", "SPDD by default"):
        assert name.lower() in [c.lower() for c in swept.curves()]
    assert all(r["metrics"]["attained"] == 1 for r in records if r["decoder"] == "spdd" and r["curve"] == "SPDD priced")


def test_records_say_what_their_arrays_say(whole):
    folder, _, records = whole
    swept = read(folder)
    for record in records:
        found = measure(swept.outcome(record), swept.truth, record["floor"])
        for name, value in record["metrics"].items():
            assert found[name].value() == pytest.approx(value), (record["curve"], name)
    both = together(swept.of("WA"))
    assert both.hit.shape == (2, worlds.USERS, worlds.SLOTS)


def test_arrays_are_those_of_the_slates(whole):
    folder, _, records = whole
    bench = worlds.bench()
    _, later, value = worlds.scores()
    point = Point("WA", {"price": 3.0}, "wa", {"weight": 0.75})
    slate = bench.policy(point)(slice(0, worlds.USERS))
    record = next(r for r in records if r["curve"] == "WA" and r["knob"] == {"price": 3.0})
    outcome = read(folder).outcome(record)
    items = slate.items.numpy()
    assert (outcome.value == value[items]).all()
    assert outcome.hit.tolist() == [
        [i in set(row) for i in s] for s, row in zip(items.tolist(), later.tolist(), strict=True)
    ]


def test_more_workers_leave_the_same(tmp_path):
    alone, shared, told = tmp_path / "alone", tmp_path / "shared", []
    sweep(worlds.bench, FEW, alone)
    sweep(worlds.bench, FEW, shared, workers=2, progress=told.append)
    assert without_time(alone) == without_time(shared)
    assert sum(told) == len(FEW)


def test_a_killed_sweep_goes_on_and_repeats_nothing(tmp_path):
    folder, log = tmp_path / "sweep", tmp_path / "log"
    command = [sys.executable, worlds.__file__, str(folder), str(log), "1"]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    end = time.monotonic() + 60
    while len(list((folder / "points").glob("*.json")) if folder.exists() else []) < 4:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {p.name: p.stat().st_mtime_ns for p in (folder / "points").glob("*.json")}
    assert 4 <= len(done) < 12
    before = log.read_text().splitlines()
    sweep(functools.partial(worlds.slow, str(log), 0.0), worlds.few(), folder)
    after = log.read_text().splitlines()[len(before) :]
    assert len(after) == 12 - len(done)  # 40 users are one batch: a line a point
    assert {p.name: p.stat().st_mtime_ns for p in (folder / "points").glob("*.json") if p.name in done} == done
    unbroken = tmp_path / "unbroken"
    sweep(worlds.bench, worlds.few(), unbroken)
    assert without_time(folder) == without_time(unbroken)


def test_keys_tell_apart_whatever_decides_an_answer():
    domain, point = worlds.bench().domain, FEW[0]
    others = [
        key_of(domain, point._replace(seed=1), 16),
        key_of(domain, point._replace(settings={"weight": 0.1}), 16),
        key_of(domain, point._replace(objective={"at_least": 1.0}), 16),
        key_of(domain._replace(digest="d2"), point, 16),
        key_of(domain._replace(floor=3.0), point, 16),
        key_of(domain, point, 17),
    ]
    assert len({key_of(domain, point, 16), *others}) == 7


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: sweep(worlds.bench, [FEW[0], FEW[0]], f), "'WA' at price 1 is there twice"),
        (lambda f: sweep(functools.partial(worlds.bench, 3.0), FEW, f), "its floor is 2.0, now it is 3.0"),
        (
            lambda f: sweep(worlds.bench, [FEW[0]._replace(settings={"weight": 2.0})], f),
            "'WA' at price 1 cannot be served",
        ),
        (lambda f: read(f / "nothing"), "has no domain.json"),
        (lambda f: read(f).of("MMR"), "has no curve 'MMR'"),
    ],
)
def test_complaints_name_the_thing(call, told, tmp_path):
    sweep(worlds.bench, FEW[:1], tmp_path)
    with pytest.raises(ValueError, match=told):
        call(tmp_path)


def test_a_bandit_has_a_trade_off_to_offer():
    _, _, value = worlds.scores()
    shares = [
        float(grid.decoder_of(point, value, worlds.SLOTS).rerank(worlds.scores()[0]).gained.mean())
        for point in grid.bandits((0,))
        if point.curve == "MB-UCB"
    ]
    assert shares[0] < shares[-1]
    assert isinstance(grid.decoder_of(grid.bandits((0,))[-1], value, 5), spdd.BanditTS)


def test_reachable_is_the_most_a_slate_could_hold(whole):
    _, _, value = worlds.scores()
    assert (read(whole[0]).reachable == min(worlds.SLOTS, value.sum())).all()
    assert np.isfinite(read(whole[0]).reachable).all()
