"""`spdd evaluate` and `spdd tune`, as people run them: on a small trained model, with a page, a policy, and plain complaints."""

import tomllib

import pytest

from spdd.cli import app
from spdd.data import prepared
from spdd.policy_file import read_policy
from spdd.trained import train_model
from test_slates import split  # noqa: F401

SMALL = {"width": 8, "heads": 2, "blocks": 1, "history": 10, "epochs": 1, "batch": 16}


@pytest.fixture(scope="module")
def made(split, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("made")
    prepared.save(split, folder / "made.npz", name="made")
    train_model("sasrec", split, folder / "run", SMALL)
    return folder


def spdd(*words):
    """The exit code."""
    try:
        app([str(w) for w in words], standalone_mode=False)
    except SystemExit as stop:
        return stop.code
    return 0


def test_evaluate_writes_a_page_and_goes_on(made, tmp_path, capfd):
    pytest.importorskip("altair")
    words = ["evaluate", made / "run", made / "made.npz", "-o", "new>=2", "-k", 4, "--out", tmp_path / "out"]
    assert spdd(*words) == 0
    said = capfd.readouterr().err
    assert "In every slate" in said
    assert "On average" in said
    text = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "What a floor in every slate costs" in text
    points = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "sweep" / "points").iterdir()}
    assert spdd(*words, "--quiet") == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "sweep" / "points").iterdir()} == points
    for name in ("run-fronts", "run-attainment", "run-positions", "run-control"):
        assert (tmp_path / "out" / "figures" / f"{name}.svg").exists()


@pytest.mark.parametrize("asked", ["new>=2", "new>=40% per traffic"])
def test_tune_writes_a_policy_that_can_be_served(made, tmp_path, asked, capfd):
    pytest.importorskip("optuna")
    out = tmp_path / "out"
    # The average cannot always be met with 30 users; then the nearest settings are written, and said to miss.
    code = spdd(
        "tune", made / "run", made / "made.npz", "-o", asked, "-k", 4, "--trials", 3, "--out", out, "--batch", 8
    )
    assert code in ((0,) if "per" not in asked else (0, 2))
    found = tomllib.loads((out / "policy.toml").read_text("utf-8"))
    assert found["objectives"][0]["name"] == "new"
    assert read_policy(out / "policy.toml").slots == 4
    assert (out / "report.html").exists()
    slates = [
        "slate",
        made / "run",
        made / "made.npz",
        "--policy",
        out / "policy.toml",
        "--out",
        tmp_path / "s.csv",
        "-q",
    ]
    assert spdd(*slates) == 0
    if code == 0 and "per" not in asked:
        assert "at least 2 of 4" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "new>=2", "--users", "0"], "--users must be at least 1"),
        (["-o", "new>=2", "--part", "train"], "'validation' or 'test'"),
        (["-o", "nwe>=2"], "Did you mean 'new'"),
    ],
)
def test_complaints_are_one_line(made, tmp_path, capfd, words, said):
    assert spdd("evaluate", made / "run", made / "made.npz", "--out", tmp_path / "out", *words) == 2
    told = capfd.readouterr().err
    assert said in told
    assert told.count("\n") == 1
