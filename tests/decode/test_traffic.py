"""Targets on the average over traffic: one price for all rows, moved after every batch."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import spdd
from spdd.decode.traffic import Traffic

ITEMS, SLOTS, ROWS = 200, 10, 16
VALUE = (np.arange(ITEMS) % 5 == 0).astype(float)


def batches(count, seed=0):
    """Scores which turn against the objective's items half-way."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        bias = 0.0 if number < count // 2 else -1.0
        yield rng.normal(size=(ROWS, ITEMS)) + bias * VALUE


def decoder(per="traffic", **settings):
    return spdd.SPDD([spdd.Objective("new", VALUE, at_least=4, per=per)], slots=SLOTS, **settings)


@pytest.mark.parametrize("start", ["warm", 1.0])
def test_the_running_average_comes_back_to_the_target_after_a_shift(start):
    served = decoder(start=start)
    shares = [served.rerank(scores).gained.mean() / SLOTS for scores in batches(500)]
    running = np.cumsum(shares) / np.arange(1, 501)
    assert abs(running[249] - 0.4) < 0.01
    assert abs(running[-1] - 0.4) < 0.01
    # It is the shift that is made good, not that there was none: fixed prices end far from the target.
    fixed = spdd.WA([spdd.Objective("new", VALUE)], slots=SLOTS, weight=0.0)
    plain = np.mean([fixed.rerank(scores).gained.mean() / SLOTS for scores in batches(500)])
    assert abs(plain - 0.4) > 0.05


def test_a_cap_on_traffic_is_kept_on_average():
    served = spdd.SPDD([spdd.Objective("new", VALUE, at_most="10%", per="traffic")], slots=SLOTS)
    shares = [served.rerank(scores).gained.mean() / SLOTS for scores in batches(300)]
    assert abs(np.mean(shares[:150]) - 0.10) < 0.01
    assert np.mean(shares) < 0.11


def test_both_keeps_every_slate_and_the_average():
    served = spdd.SPDD(
        [
            spdd.Objective("new", VALUE, at_least=4, per="traffic"),
            spdd.Objective("some new", VALUE, at_least=2),
        ],
        slots=SLOTS,
    )
    slates = [served.rerank(scores) for scores in batches(200)]
    assert min(s.gained[:, 1].min() for s in slates) >= 2
    assert abs(np.mean([s.gained[:, 0].mean() for s in slates]) - 4) < 0.1
    one = decoder(per="both")
    assert min(one.rerank(scores).gained.min() for scores in batches(50)) >= 4


def test_all_rows_of_a_batch_share_the_price():
    served = decoder()
    slate = served.rerank(next(batches(2)))
    assert len(np.unique(slate.dual)) == 1
    assert served.traffic.batches == 1
    assert served.traffic.slates == ROWS


def test_a_saved_state_goes_on_as_if_never_stopped(tmp_path):
    stream = list(batches(60))
    whole, first = decoder(), decoder()
    for scores in stream:
        whole.rerank(scores)
    for scores in stream[:30]:
        first.rerank(scores)
    first.save(tmp_path / "traffic.json")
    second = decoder().load(tmp_path / "traffic.json")
    for scores in stream[30:]:
        second.rerank(scores)
    assert second.traffic == whole.traffic


def test_a_killed_process_leaves_a_whole_state(tmp_path):
    """The state is saved after every batch by a process that is killed in the middle of its work."""
    path = tmp_path / "traffic.json"
    program = f"""
import numpy as np, spdd
value = (np.arange(50) % 5 == 0).astype(float)
served = spdd.SPDD([spdd.Objective("new", value, at_least=4, per="traffic")], slots=10)
rng = np.random.default_rng(0)
while True:
    served.rerank(rng.normal(size=(4, 50)))
    served.save({str(path)!r})
    print(served.traffic.batches, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) >= 20:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    value = (np.arange(50) % 5 == 0).astype(float)

    def fresh():
        return spdd.SPDD([spdd.Objective("new", value, at_least=4, per="traffic")], slots=10)

    again, whole, rng = fresh().load(path), fresh(), np.random.default_rng(0)
    assert again.traffic.batches >= 20
    for _ in range(again.traffic.batches):
        whole.rerank(rng.normal(size=(4, 50)))
    assert again.traffic == whole.traffic  # to the bit: as if it had never been killed
    for _ in range(10):
        scores = rng.normal(size=(4, 50))
        np.testing.assert_array_equal(again.rerank(scores).items, whole.rerank(scores).items)
    assert again.traffic == whole.traffic


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kind": "something else"}',
        '{"kind": "spdd traffic", "version": 1, "promises": ["new at_least"], "target": [null]}',
    ],
)
def test_a_broken_state_is_refused(tmp_path, text):
    path = tmp_path / "traffic.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot be read"):
        decoder().load(path)


def test_a_state_of_other_objectives_is_refused(tmp_path):
    served = decoder()
    served.rerank(next(batches(2)))
    served.save(tmp_path / "traffic.json")
    assert json.loads((tmp_path / "traffic.json").read_text())["promises"] == ["new at_least"]
    other = spdd.SPDD([spdd.Objective("old", VALUE, at_least=4, per="traffic")], slots=SLOTS)
    with pytest.raises(ValueError, match="belongs to other objectives"):
        other.load(tmp_path / "traffic.json")


@pytest.mark.parametrize(
    ("word", "mean", "step"),
    [
        ("at_least", 2.0, 0.5 * (1 - 2 / 4)),
        ("at_least", 0.0, 0.5),
        ("at_least", 40.0, -0.5),  # and not -4.5
        ("at_most", 5.0, -0.5 * (1 - 5 / 4)),
        ("at_most", 40.0, 0.5),
        ("at_most", 0.0, -0.5),
    ],
)
def test_no_batch_moves_a_price_by_more_than_its_rate(word, mean, step):
    begun = Traffic((f"new {word}",), (4.0,)).begun([10.0], unit=2.0)
    assert begun.moved([mean], 7, [0.5]).price == (10.0 + 2.0 * step,)


def test_a_price_ends_at_nothing_and_at_a_thousand_units():
    floor = Traffic(("new at_least",), (4.0,)).begun([0.2], unit=2.0)
    assert floor.moved([9.0], 7, [0.5]).price == (0.0,)
    for _ in range(3000):
        floor = floor.moved([0.0], 7, [0.5])
    assert floor.price == (2000.0,)


def test_of_a_target_of_nothing_the_average_is_the_error():
    cap = Traffic(("new at_most",), (0.0,)).begun([1.0], unit=2.0)
    assert cap.moved([0.25], 7, [0.5]).price == (1.0 + 2.0 * 0.5 * 0.25,)
    assert cap.moved([3.0], 7, [0.5]).price == (1.0 + 2.0 * 0.5,)


@pytest.mark.parametrize(("floor", "status"), [(10, spdd.MET), (10.5, spdd.IMPOSSIBLE), (40, spdd.IMPOSSIBLE)])
def test_an_average_no_slate_can_carry_is_impossible(floor, status):
    """Every slate full of what is wanted is not enough: rows were all said to be met."""
    served = spdd.SPDD([spdd.Objective("new", VALUE, at_least=floor, per="traffic")], slots=SLOTS)
    for scores in batches(2):
        slate = served.rerank(scores)
        assert (slate.status == status).all()
        assert status == spdd.MET or (slate.reachable == 10).all()


def test_personal_targets_cannot_be_averaged():
    with pytest.raises(ValueError, match="one number when per='traffic'"):
        spdd.Objective("new", VALUE, at_least=np.array([1.0, 2.0]), per="traffic")


def test_several_calls_may_be_one_batch():
    logits, new = np.random.default_rng(0).normal(size=(30, 9)), np.arange(9) % 3 == 0
    one, other = (
        spdd.SPDD([spdd.Objective("new", value=new.astype(float), at_least=2, per="traffic")], slots=3)
        for _ in range(2)
    )
    one.rerank(logits[:1])  # first prices follow the first rows seen
    one.rerank(logits)
    other.rerank(logits[:1])
    with other.one_batch():
        other.rerank(logits[:20])
        assert other.traffic.batches == 1
        other.rerank(logits[20:])
    assert other.traffic == one.traffic
    with other.one_batch():
        pass
    assert other.traffic == one.traffic
