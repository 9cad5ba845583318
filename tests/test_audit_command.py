"""`spdd audit`, from a trained model to a page: as people run it, and what it refuses."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch

from spdd import audit_command
from spdd.data import prepared
from spdd.trained import train_model
from test_cli import run  # noqa: F401
from test_slates import USERS, split  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent / "report"))
import browser

SMALL = {"epochs": 1, "width": 20, "heads": 2}
WORDS = ["--slots", "4", "--rate", "0.5", "--scale", "relative", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(split, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("audit")
    prepared.save(split, folder / "data.npz")
    train_model("sasrec", split, folder / "run", SMALL, device="cpu")
    return folder


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    """The folder of an audit of two floors."""
    out = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spdd", "audit", "run", "data.npz", "-o", "new>=2"])
        audit_command.audit(
            trained / "run", trained / "data.npz", ["new>=2", "categories=Cycling>=50%"], out, slots=4, rate=[0.5, 1.0],
            scale=["relative"], close=5, device="cpu", quiet=True,
        )  # fmt: skip
    return out


def test_page_tables_and_numbers_are_written(written):
    page = (written / "audit.html").read_text("utf-8")
    for word in ("Assumption 1", "new ≥ 2", "categories=Cycling ≥ 2", "spdd audit run data.npz", "the first 5 users"):
        assert word in page
    for name in ("steps", "shortfall-0", "still-0", "moving-1"):
        assert (written / "figures" / f"{name}.svg").exists()
    told = json.loads((written / "audit.json").read_text("utf-8"))
    assert (told["users"], told["items"], told["slots"], told["close"]) == (USERS, 40, 4, 5)
    assert [(c["goal"], c["rate"]) for c in told["cases"]] == [
        (goal, rate) for goal in ("new", "categories=Cycling") for rate in (0.5, 1.0, None)
    ]
    rows = list(csv.DictReader((written / "tables" / "still-0.csv").read_text("utf-8").splitlines()))
    assert [row["rate"] for row in rows] == ["0.5", "1.0", ""]
    for row, case in zip(rows, told["cases"], strict=False):
        assert float(row["happened"]) == pytest.approx(case["still"]["mean"]["value"])
    default = [c for c in told["cases"] if c["rate"] is None]
    assert all(c["missed"]["value"] == 0 and c["still"]["largest"] < 1e-9 for c in default)


@pytest.mark.browser
def test_page_is_whole_at_any_width(written, tmp_path):
    with browser.chromium(tmp_path / "profile") as window:
        for width in (1280, 390):
            window.open(written / "audit.html", width)
            assert window.ask("document.documentElement.dataset.figures") == "drawn"
            assert not window.complaints
            assert not window.ask(browser.CUT_OFF)
            assert not window.ask(browser.OVERLAPS)


def test_one_screen_says_it_all(trained, run):  # noqa: F811
    code, _, err = run("audit", trained / "run", trained / "data.npz", "-o", "new>=2", "--users", 8, *WORDS)
    assert code == 0, err
    assert "8 users, slates of 4 out of 40 items" in err
    assert "Assumption 1" in err
    assert "audit.html" in err
    assert Path("out/audit/audit.html").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "new<=2"], "needs floors of slates, like 'new>=3', got 'new<=2'"),
        (["-o", "new>=2 per traffic"], "needs floors of slates"),
        (["-o", "newt>=2"], "items have no column 'newt'. Did you mean 'new'"),
        (["-o", "artist>=2"], "column 'artist' holds labels. Ask for one of them"),
        (["-o", "new>=30"], "no user can get 4 items that reach the floor 30"),
        (["-o", "new>=2", "--part", "later"], "--part must be one of test, validation, all"),
        (["-o", "new>=2", "--users", "0"], "--users must be at least 1"),
        (["-o", "new>=2", "--rate", "0"], "`rates` must be numbers above 0"),
        (["-o", "new>=2", "--scale", "chance"], "`scale` must be one of"),
    ],
)
def test_what_cannot_be_audited_is_refused(trained, run, words, complaint):  # noqa: F811
    code, _, err = run("audit", trained / "run", trained / "data.npz", *WORDS, *words)
    assert code == 2
    assert complaint in err
    assert not Path("out").exists()


def test_a_model_that_proposes_is_refused(split, trained, run, monkeypatch):  # noqa: F811
    class Speller:
        def propose(self, state, count):
            raise AssertionError("asked")

    from spdd import trained as runs

    monkeypatch.setattr(runs, "open_run", lambda *_, **__: runs.Opened(Speller(), runs.by_history))
    code, _, err = run("audit", trained / "run", trained / "data.npz", "-o", "new>=2", *WORDS)
    assert code == 2
    assert "never scores all of them" in err


def test_rankers_of_pools_are_audited_by_what_users_may_have(split, trained, run, monkeypatch):  # noqa: F811
    """Users with pools of nine items each: all is measured in the pool, and the catalogue's other items are not looked at."""
    from spdd import trained as runs
    from test_slates import model

    pool = torch.arange(40)[None] // 9 != torch.arange(USERS)[:, None] % 4

    def asked(split, part):
        return runs.by_history(split, part)._replace(exclude=lambda rows: pool[rows])

    monkeypatch.setattr(runs, "open_run", lambda *_, **__: runs.Opened(model(), asked))
    code, _, err = run("audit", trained / "run", trained / "data.npz", "-o", "new>=1", *WORDS, "--close", "3")
    assert code == 0, err
    told = json.loads(Path("out/audit/audit.json").read_text("utf-8"))
    assert told["cases"][0]["users"] == USERS
    assert [s["items"] for s in told["steps"][0]["samples"]] == ["best at the first slot"]
    assert any("9 best items" in line for line in told["sampling"])
