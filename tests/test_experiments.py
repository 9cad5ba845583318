"""`spdd experiment`: simulated or of one's own table, on a screen, a page, CSV and JSON; mistakes are named."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from spdd import cli, experiments

pytest.importorskip("tea_tasting")
pytest.importorskip("altair")
sys.path.insert(0, str(Path(__file__).parent / "report"))
import browser

QUICK = ["--model", "knn", "--users", "240", "--visits", "1", "-k", "5", "--floor", "1"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """spdd experiment *words -> (exit code, stdout, stderr), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("COLUMNS", "80")

    def spdd(*words):
        monkeypatch.setattr(sys, "argv", ["spdd", "experiment", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return spdd


def results(folder):
    return list(csv.DictReader((folder / "results.csv").read_text("utf-8").splitlines()))


@pytest.mark.slow
def test_simulated_and_then_analysed_as_a_table(run, tmp_path):
    code, _, err = run(*QUICK, "--out", "sim")
    assert code == 0, err
    sim = tmp_path / "sim"
    told = json.loads((sim / "experiment.json").read_text("utf-8"))
    assert told["arms"] == ["control", "wa", "spdd"]
    assert told["shown"]["spdd"]["met"] == 1
    assert told["shown"]["control"]["held"] < told["shown"]["wa"]["held"]
    assert len(told["results"]) == 10
    assert len(told["plan"]) == 5
    assert all("true_lift" in row for row in told["results"])
    assert "divided as they should be" in err
    assert max(map(len, err.splitlines())) <= 80
    assert "…" not in err
    page = (sim / "experiment.html").read_text("utf-8")
    assert "The truth, known here, lies in" in page
    assert (sim / "figures" / "lifts.png").exists()
    assert (sim / "tables" / "results.csv").exists()

    ratios = ("stream share=wanted plays/plays", "skip rate=skips/looks", "completion=parts/plays")
    metrics = [word for m in ("minutes", "plays", *ratios) for word in ("-m", m)]
    code, _, err = run("analyse", sim / "users.csv", *metrics, "--out", "table")
    assert code == 0, err
    there = {(r["arm"], r["metric"]): r for r in results(tmp_path / "table")}
    for row in results(sim):
        again = there[row["arm"], row["metric"]]
        for name in ("lift", "lift_low", "difference_high", "p_value", "adjusted"):
            assert float(again[name]) == pytest.approx(float(row[name]), rel=1e-9)


@pytest.mark.slow
def test_aa_with_looks_and_an_arm_of_ones_own(run, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'decoder = "must-fill"\nslots = 5\n[[objectives]]\nname = "new_creator"\nat_least = 2\n'
    )
    code, _, err = run(*QUICK, "--arms", "", "--arm", "mine=mine.toml", "--out", "own", "-q")
    assert (code, err) == (0, "")
    told = json.loads((tmp_path / "own" / "experiment.json").read_text("utf-8"))
    assert told["shown"]["mine"]["held"] >= 2
    code, _, err = run(*QUICK, "--aa", "--arms", "spdd", "--peek", "2", "--correction", "bh", "--out", "aa")
    assert code == 0, err
    told = json.loads((tmp_path / "aa" / "experiment.json").read_text("utf-8"))
    assert told["arms"] == ["control", "control again"]
    assert [look["users"] for look in told["looks"]] == [120, 240]
    assert all(row["true_lift"] == 0 for row in told["results"])
    assert "whatever is found is an error" in err


def table(users=400, **columns):
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user": [f"u{n}" for n in range(users)],
            "arm": np.where(np.arange(users) % 2, "new", "control"),
            "minutes": random.gamma(2, 10, users),
            "minutes before": random.gamma(2, 10, users),
            "skips": random.poisson(2, users),
            "looks": random.poisson(6, users) + 1,
            "day": np.arange(users)[::-1],
        }
        | columns
    )


@pytest.mark.slow
def test_a_table_in_any_form_by_any_names(run, tmp_path):
    made = table()
    made.write_parquet("one.parquet")
    made.rename({"arm": "group", "user": "id", "minutes before": "minutes_pre"}).write_csv("two.csv")
    say = ["-m", "minutes", "-m", "rate = skips / looks"]
    assert run("analyse", "one.parquet", *say, "--out", "one")[0] == 0
    assert run("analyse", "two.csv", *say, "--user", "id", "--arm", "group", "--before", "_pre", "--out", "two")[0] == 0
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert float(results(tmp_path / "one")[0]["variance_left"]) != 1
    code, _, err = run("analyse", "one.parquet", "--order", "day", "--peek", "2", "--planned", "1000", "--out", "three")
    assert code == 0, err
    assert {r["metric"] for r in results(tmp_path / "three")} == {"minutes", "skips", "looks"}
    told = json.loads((tmp_path / "three" / "experiment.json").read_text("utf-8"))
    assert told["sequential"]


@pytest.mark.slow
def test_a_lost_arm_is_cried_out(run, tmp_path):
    table().filter((pl.col("arm") == "new") | (pl.int_range(pl.len()) % 3 == 0)).write_csv("lost.csv")
    code, _, err = run("analyse", "lost.csv", "-m", "minutes", "--out", "lost")
    assert code == 0
    assert "NOT as they should be" in err
    assert "nothing here can be believed" in (tmp_path / "lost" / "experiment.html").read_text("utf-8")
    assert "as they should be (p 0" in run("analyse", "lost.csv", "-m", "minutes", "--share", "new=3", "--share", "control=1")[2]  # fmt: skip


BAD = {
    "twice": table(user=["u0", "u0", *(f"u{n}" for n in range(2, 400))]),
    "empty": table(minutes=[None, *range(399)]),
    "text": table(minutes=["x"] * 400),
    "nameless": table(arm=[None, *["control", "new"] * 199, "new"]),
    "one": table(arm=["control"] * 400),
    "nan": table(minutes=[float("nan")] * 400),
}


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("none", [], "'none.csv' cannot be read: there is no such file."),
        ("good", ["--user", "who"], "'good.csv' must have a column 'who', and has user, arm, minutes"),
        ("good", ["-m", "hours"], "'good.csv' must have a column 'hours'"),
        ("good", ["-m", "x=skips/"], "a metric is said as 'minutes' or 'skip rate=skips/looks', got 'x=skips/'."),
        ("good", ["-m", "minutes", "-m", "minutes"], "metrics must have names of their own: minutes, minutes."),
        ("good", ["--control", "old"], "'good.csv' has no users in the arm 'old', only in control, new."),
        ("good", ["--share", "new=2"], "shares must be said of each arm, control, new, got new."),
        ("good", ["--share", "new=x"], "the share of arm 'new' must be a number, got 'x'."),
        ("good", ["--share", "new"], "must be said as 'name=...', got 'new'."),
        ("good", ["--peek", "3"], "name its column with --order."),
        ("good", ["--peek", "9", "--order", "day"], "Look at most 4 times."),
        ("good", ["--correction", "tukey"], "`correction` must be one of holm, bh, none, got 'tukey'."),
        ("good", ["--alpha", "5"], "`alpha` must lie between 0 and 1, got 5.0."),
        ("twice", [], "'twice.csv' must have a row per user, and has 'u0' twice. Sum up what each user did first."),
        ("empty", ["-m", "minutes"], "column 'minutes' of 'empty.csv' must hold a number for every user, and 1 have none."),
        ("nan", ["-m", "minutes"], "and 400 have none. Write 0 for who did nothing."),
        ("text", ["-m", "minutes"], "column 'minutes' of 'text.csv' must hold numbers, and holds String."),
        ("nameless", [], "column 'arm' of 'nameless.csv' must name one in every row, and 1 are empty."),
        ("one", ["-m", "minutes"], "`arms` must name a control and at least one other, got control."),
    ],
)  # fmt: skip
def test_mistakes_in_a_table_are_named(run, name, words, says):
    if name != "none":
        BAD.get(name, table()).write_csv(f"{name}.csv")
    code, _, err = run("analyse", f"{name}.csv", *words)
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arms", "xyz"], "arms must be some of wa, spdd, must-fill, spdd-printed, or NAME=FILE, got 'xyz'."),
        (["--arms", "control"], "an experiment must have an arm beside the control"),
        (["--arms", "spdd", "--arm", "spdd=x.toml"], "arms must have names of their own, got 'spdd' twice."),
        (["--users", "5"], "`users` must be a whole number of at least 100, got 5"),
        (["--floor", "11"], "`floor` must lie between 0 and the 5 slots, got 11"),
        (["--model", "magic"], "the model must be one of sasrec, knn, popularity, got 'magic'."),
        (["--visits", "0", "--arms", "spdd"], "`visits` must be a whole number of at least 1, got 0."),
    ],
)
def test_mistakes_in_a_simulation_are_named(run, words, says):
    code, _, err = run(*QUICK, *words)
    assert code == 2
    assert says in err


@pytest.mark.browser
def test_the_page_is_whole_at_any_width(run, tmp_path):
    assert run(*QUICK, "--peek", "2", "--arms", "spdd", "--out", "seen", "-q")[0] == 0
    with browser.chromium(tmp_path / "profile") as window:
        for width in (1280, 390):
            window.open(tmp_path / "seen" / "experiment.html", width)
            assert window.ask("document.documentElement.dataset.figures") == "drawn"
            assert window.ask("document.querySelectorAll('.chart svg').length") == 10
            assert not window.complaints
            assert not window.ask(browser.CUT_OFF)
            assert not window.ask(browser.OVERLAPS)


def test_the_weight_of_the_rival_gives_as_much_on_average(tmp_path):
    on = experiments.stage(tmp_path, users=300, slots=5, floor=1, model="knn")
    _, about = experiments.KNOWN["wa"](on)
    held = float(re.search(r"slates hold ([0-9.]+)", about)[1])
    assert held == pytest.approx(1, abs=0.1)
