"""Training can be killed, resumed and shared out without changing what comes of it."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from toy import Toy

from spdd.models import checkpoint, train

PROGRAM = [sys.executable, str(Path(__file__).with_name("toy.py"))]
SMALL = {"epochs": 3, "rate": 0.01, "every": 2}


def weights(toy):
    return torch.cat([x.flatten() for x in toy.model.state_dict().values()])


def lines(folder):
    """metrics.jsonl without what a clock wrote."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_it_learns_and_keeps_the_best(tmp_path):
    toy = Toy()
    fitted = train.fit(toy, train.Settings(epochs=6, rate=0.01), tmp_path)
    rows = lines(tmp_path)
    assert len(rows) == fitted.epochs == 6
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]
    assert fitted.best["fit"] == max(row["metrics"]["fit"] for row in rows) == toy.validate()["fit"]
    assert (fitted.why, fitted.steps) == ("epochs", 48)


def test_it_stops_when_validation_stops_improving(tmp_path):
    toy = Toy()
    toy.validate = iter([{"fit": x} for x in (0.1, 0.3, 0.2, 0.3, 0.9)]).__next__
    fitted = train.fit(toy, train.Settings(epochs=9, patience=2), tmp_path)
    assert (fitted.why, fitted.epoch, fitted.epochs) == ("patience", 1, 4)


def test_the_rate_fades_by_epochs(tmp_path):
    """With a fade near 0, weights stay where the first epoch left them."""
    once, faded = (Toy() for _ in range(2))
    train.fit(once, train.Settings(epochs=1, rate=0.01), tmp_path / "once")
    train.fit(faded, train.Settings(epochs=3, rate=0.01, fade=1e-9), tmp_path / "faded")
    for one, other in zip(once.model.parameters(), faded.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


class Clock:
    """Of training: a second more whenever it is looked at."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(train, "time", self)

    def monotonic(self):
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("seconds", [4, 7, 20])
def test_it_stops_between_steps_when_time_is_up_and_goes_on_unbroken(tmp_path, monkeypatch, seconds):
    unbroken = Toy()
    train.fit(unbroken, train.Settings(**SMALL), tmp_path / "whole")
    settings = train.Settings(**{**SMALL, "every": 0}, seconds=seconds)
    Clock(monkeypatch)
    stood, why = [], "seconds"
    while why == "seconds":
        toy = Toy(seed=len(stood))
        fitted = train.fit(toy, settings, tmp_path / "parts")
        why, stood = fitted.why, [*stood, (fitted.steps, fitted.epochs)]
        assert toy.losses < seconds  # it looks at the clock after every step, and elsewhere
    assert stood == sorted(set(stood))  # it always comes further, if only to the end of an epoch
    assert len(stood) > 1
    assert stood[-1] == (24, 3)
    assert torch.equal(weights(toy), weights(unbroken))
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_time_up_inside_the_first_epoch_leaves_what_was_learnt(tmp_path, monkeypatch):
    Clock(monkeypatch)
    toy, untrained = Toy(), Toy()
    fitted = train.fit(toy, train.Settings(epochs=3, rate=0.01, seconds=5), tmp_path)
    assert (fitted.why, fitted.epoch, fitted.epochs) == ("seconds", -1, 0)
    assert 0 < fitted.steps == toy.losses < 8
    kept = checkpoint.load(tmp_path / "best.pt")
    assert kept.more["metrics"] == fitted.best == toy.validate() != untrained.validate()
    for name, weight in toy.model.state_dict().items():
        assert torch.equal(kept.weights[name], weight)
    assert lines(tmp_path) == []


def test_killed_and_resumed_equals_unbroken(tmp_path):
    unbroken = Toy()
    train.fit(unbroken, train.Settings(**SMALL), tmp_path / "whole")
    folder = tmp_path / "killed"
    killed = subprocess.Popen([*PROGRAM, folder, json.dumps(SMALL), "0.2", "0.2"], env=environment())
    while not _midway(folder / "last.pt"):  # the second epoch, between two checkpoints, has begun
        assert killed.poll() is None
        time.sleep(0.02)
    time.sleep(0.15)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resumed = Toy(seed=5)
    train.fit(resumed, train.Settings(**SMALL), folder)
    assert 0 < resumed.losses < unbroken.losses
    assert torch.equal(weights(resumed), weights(unbroken))
    assert lines(folder) == lines(tmp_path / "whole")


def _midway(path):
    if not path.exists():
        return False
    held = checkpoint.load(path).more
    return held["epoch"] == 1 and held["step"] > 0


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    first, second = Toy(), Toy(seed=5)
    train.fit(first, train.Settings(**SMALL), tmp_path)
    train.fit(second, train.Settings(**SMALL), tmp_path)
    assert second.losses == 0
    assert torch.equal(weights(first), weights(second))


def test_more_epochs_go_on_from_the_last(tmp_path):
    whole, parts = Toy(), Toy()
    train.fit(whole, train.Settings(**SMALL), tmp_path / "whole")
    train.fit(parts, train.Settings(**{**SMALL, "epochs": 1}), tmp_path / "parts")
    train.fit(parts, train.Settings(**SMALL), tmp_path / "parts")
    assert torch.equal(weights(whole), weights(parts))


def test_resume_false_starts_afresh(tmp_path):
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    fresh = Toy()
    train.fit(fresh, train.Settings(**{**SMALL, "rate": 0.02}), tmp_path, resume=False)
    assert fresh.losses == 24


@pytest.mark.parametrize("change", [{"rate": 0.02}, {"seed": 1}, {"clip": 2.0}, {"optimizer": "adamw"}])
def test_resume_with_other_settings_is_refused(tmp_path, change):
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=rf"cannot go on with other settings: {name} .* then, {value!r} now"):
        train.fit(Toy(), train.Settings(**{**SMALL, **change}), tmp_path)


def test_resume_of_another_model_catalog_or_data_is_refused(tmp_path):
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    with pytest.raises(ValueError, match="other settings: wide 8 then, 9 now"):
        train.fit(Toy(wide=9), train.Settings(**SMALL), tmp_path)
    foreign, other = Toy(), Toy()
    foreign.fingerprint, other.data = "elsewhere", "more events"
    with pytest.raises(ValueError, match="trained on other items"):
        train.fit(foreign, train.Settings(**SMALL), tmp_path)
    with pytest.raises(ValueError, match="data '' then, 'more events' now"):
        train.fit(other, train.Settings(**SMALL), tmp_path)


def test_truncated_run_is_refused(tmp_path):
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    path = tmp_path / "last.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"last\.pt' is truncated"):
        train.fit(Toy(), train.Settings(**SMALL), tmp_path)


def test_folder_that_cannot_be_made_is_told_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    toy = Toy()
    with pytest.raises(OSError, match=r"Folder .*file/run' cannot be made"):
        train.fit(toy, train.Settings(**SMALL), tmp_path / "file" / "run")
    assert toy.losses == 0


def test_diverging_is_told_and_never_saved(tmp_path):
    toy = Toy()
    toy.loss = lambda batch, generator: toy.model(batch).mean() * torch.nan
    with pytest.raises(ValueError, match=r"The loss became nan in epoch 0, by step 2.*Lower `rate`"):
        train.fit(toy, train.Settings(**SMALL), tmp_path)
    assert checkpoint.load(tmp_path / "last.pt").more["steps"] == 0


@pytest.mark.parametrize("every", [0, 11])
def test_weights_that_are_not_finite_are_never_kept(tmp_path, every):
    """No loss has seen the last step's weights, and validation may find them as good as any."""
    toy = Toy()
    whole = toy.batches
    # Every step takes every weight 3.3e37 down: eleven are one too many for 32 bits, and the loss never notices.
    toy.batches = lambda *which: itertools.islice(itertools.cycle(whole(*which)), 12 if every else 11)
    toy.loss = lambda batch, generator: torch.cat([p.flatten() for p in toy.model.parameters()]).double().mean()
    toy.validate = lambda: {"fit": 0.8}
    with pytest.raises(ValueError, match=r"The weights are no longer finite in epoch 0, by step 11: .* Lower `rate`"):
        train.fit(toy, train.Settings(epochs=1, every=every, rate=3.3e37), tmp_path)
    assert not (tmp_path / "best.pt").exists()
    held = checkpoint.load(tmp_path / "last.pt")
    assert all(bool(x.isfinite().all()) for x in held.weights.values())


def test_a_first_metric_that_is_no_number_is_told(tmp_path):
    toy = Toy()
    toy.validate = lambda: {"fit": float("nan")}
    with pytest.raises(ValueError, match="'fit' is not a number"):
        train.fit(toy, train.Settings(epochs=1), tmp_path)
    assert not (tmp_path / "best.pt").exists()


def test_training_leaves_chance_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_bf16_learns(tmp_path):
    fitted = train.fit(Toy(), train.Settings(epochs=4, rate=0.01, precision="bf16"), tmp_path)
    assert fitted.best["fit"] > lines(tmp_path)[0]["metrics"]["fit"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", 0),
        ("epochs", 1.5),
        ("rate", 0.0),
        ("clip", float("nan")),
        ("decay", -1),
        ("precision", "fp8"),
        ("fade", 0.0),
    ],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*got {value!r}"):
        train.Settings(**{name: value})


def test_a_terminal_sees_progress(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    train.fit(Toy(), train.Settings(**SMALL), tmp_path)
    assert "epoch 2, step" in sys.stderr.getvalue()


@pytest.mark.slow
def test_two_processes_are_one_with_the_whole_batch(tmp_path):
    """They begin with different weights, and see half of each batch: without chance, all must come out the same."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *PROGRAM[1:]]
    done = subprocess.run(
        [*launch, tmp_path, json.dumps(SMALL), "0", "0"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"weights{rank}.pt") for rank in (0, 1))
    alone = Toy(chance=0.0)
    train.fit(alone, train.Settings(**SMALL), tmp_path / "alone")
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], weight, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="processes 2 then, 1 now"):
        train.fit(alone, train.Settings(**SMALL), tmp_path)
