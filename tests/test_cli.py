"""The command line: what it serves, and that what it refuses ends in one plain line, exit code 2 and no file."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

import spdd
from spdd import cli, terminal
from spdd.policy_file import DECODERS
from spdd.table import Summary
from spdd.table.rerank import Tally

GOOD = """user,item,score,new creators,margin,artist
ann,a,3.0,0,0.5,x
ann,b,2.5,0,0.25,x
ann,c,2.0,1,0.5,y
ann,d,1.0,1,1,y
ben,a,3.0,0,0.5,x
ben,c,2.0,1,0.5,z
ben,b,2.5,0,0.25,x
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """spdd(*words) -> (exit code, stdout, stderr), in a folder with candidates.csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # or the command would leave torch with one thread
    (tmp_path / "candidates.csv").write_text(GOOD)

    def spdd(*words, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["spdd", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return spdd


def rerank(run, *words, **more):
    """The rows of the output."""
    code, out, err = run("rerank", *words, **more)
    assert code == 0, err
    return pl.read_csv(io.StringIO(out))


def in_a_process(words, **more):
    command = [sys.executable, "-m", "spdd.cli", *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, check=False, **more)


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# ---- what it serves -----------------------------------------------------------------------------------------------


def test_a_floor_is_kept(run):
    out = rerank(run, "candidates.csv", "--slots", 2, "--objective", "new creators>=1", "--quiet")
    assert out.columns == ["user", "slot", "item", "score", "new creators", "dual", "status"]
    assert out["item"].to_list() == ["a", "c", "a", "c"]
    assert out["slot"].to_list() == [1, 2, 1, 2]
    assert out["status"].unique().to_list() == ["met"]


def test_the_summary_says_what_was_met_and_what_it_cost(run, tmp_path):
    code, out, err = run("rerank", "candidates.csv", "-k", 3, "-o", "new creators>=2", "--out", "slates.parquet")
    assert (code, out) == (0, "")
    assert len(pl.read_parquet("slates.parquet")) == 6
    assert "2 users, 6 of 6 slots filled\n7 rows in" in err
    assert re.search(r"new creators +at least 2 +1\.500 +1\.000 +50\.0% +0\.0% +50\.0%", err)
    assert re.search(r"slates +50\.0% +0\.0% +50\.0%", err)
    assert "relevance per slate 6.75, greedy 7.5: 0.75 given up (logit scale)" in err


def test_quiet_says_nothing(run):
    assert run("rerank", "candidates.csv", "-q", "--out", "slates.csv") == (0, "", "")


def test_short_lists_are_told(run):
    _, _, err = run("rerank", "candidates.csv", "-k", 4, "-o", "new creators>=1")
    assert "1 user has fewer candidates than slots, and a shorter slate" in err


def test_names_may_be_anything(run, tmp_path):
    text = 'who,"the ""item""",[red]%,新しい\n1,2,0.5,1\n1,3,0.7,0\n'
    (tmp_path / "odd.csv").write_text(text, encoding="utf-8-sig")
    words = ["odd.csv", "--user", "who", "--item", 'the "item"', "--score", "[red]%", "-k", 1, "-o", "新しい>=1"]
    code, out, err = run("rerank", *words)
    assert code == 0, err
    header, first = csv.reader(io.StringIO(out))
    assert header == ["who", "slot", 'the "item"', "[red]%", "新しい", "dual", "status"]
    assert [*first[:5], first[-1]] == ["1", "1", "2", "0.5", "1", "met"]


def test_floor_and_cap_per_traffic_and_per_group(run):
    out = rerank(
        run, "candidates.csv", "-k", 2, "-o", "new creators>=0.5", "-o", "new creators<=1", "-o", "0.1<=margin<=70% per traffic",
        "--at-most-per", "artist<=1",
    )  # fmt: skip
    names = ["new creators", "margin", "at most 1 per artist"]
    assert out.columns[4:] == [*names, *(f"dual {n}" for n in names), "status"]
    assert out.group_by("user", maintain_order=True).agg(pl.col(names[0]).sum())[names[0]].to_list() == [1, 1]
    assert out["at most 1 per artist"].sum() == 0


# What a decoder cannot do without.
OWN = {
    "mmr": ["--set", "embeddings=artist"],
    "dpp": ["--set", 'embeddings=["margin", "new creators"]'],
    "calibrated": ["--set", "table=artist", "--set", "wanted={x = 1, y = 1}"],
    "provider-max-min": ["--set", "providers=artist"],
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_runs(run, name):
    out = rerank(run, "candidates.csv", "-k", 2, "-o", "new creators>=1", "-d", name, *OWN.get(name, []))
    assert len(out) == 4
    assert out.group_by("user").agg(pl.col("item").n_unique())["item"].to_list() == [2, 2]


def test_settings_reach_the_decoder(run):
    words = ["candidates.csv", "-k", 2, "-o", "new creators>=1", "-d", "wa"]
    assert rerank(run, *words, "--set", "weight=0")["dual"].unique().to_list() == [0]
    assert rerank(run, *words, "--set", "weight=0.75")["dual"].unique().to_list() == [3]


def test_a_policy_file_says_it_all_and_options_come_on_top(run, tmp_path):
    (tmp_path / "policy.toml").write_text(
        'decoder = "must-fill"\nslots = 2\n[[objectives]]\nname = "fresh"\ncolumn = "new creators"\nat_least = 1\n'
    )
    out = rerank(run, "candidates.csv", "--policy", "policy.toml")
    assert out.columns[4] == "fresh"
    assert out.group_by("user").agg(pl.col("fresh").sum())["fresh"].to_list() == [1, 1]
    assert len(rerank(run, "candidates.csv", "-p", "policy.toml", "-k", 1)) == 2
    assert rerank(run, "candidates.csv", "-p", "policy.toml", "-d", "greedy")["fresh"].sum() == 0
    assert rerank(run, "candidates.csv", "-p", "policy.toml", "-o", "fresh>=2").filter(user="ann")["fresh"].sum() == 2


def test_what_is_learnt_is_kept(run, tmp_path):
    words = ["rerank", "candidates.csv", "-k", 2, "-o", "new creators>=1 per traffic", "--state", "traffic.json"]
    for slates in (2, 4):
        code, _, err = run(*words)
        assert code == 0, err
        assert json.loads((tmp_path / "traffic.json").read_text())["slates"] == slates


def test_providers_are_told_of_and_kept(run, tmp_path):
    words = [
        "rerank",
        "candidates.csv",
        "-k",
        2,
        *FAIR,
        "--set",
        "weight=0.8",
        "--set",
        "rate=1.0",
        "--state",
        "s.json",
    ]
    code, _, err = run(*words)
    assert code == 0, err
    assert "worst-off of 3 providers: 0.000 of the exposure due, greedy 0.000\n" in err  # the first batch is greedy
    _, out, err = run(*words)
    assert pl.read_csv(io.StringIO(out)).filter(user="ben", slot=1)["item"].to_list() == ["c"]
    assert "greedy 0.000" in err
    state = json.loads((tmp_path / "s.json").read_text())
    assert (state["provider"], state["slates"]) == (["x", "y", "z"], 4)


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_standard_input_and_output(form, tmp_path):
    frame, given = pl.read_csv(io.StringIO(GOOD)), io.BytesIO()
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "arrow": frame.write_ipc}[form](given)
    done = in_a_process(
        ["rerank", "-", "-k", 2, "-o", "new creators>=1", "--format", form], input=given.getvalue(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": pl.read_ipc}[form]
    assert read(io.BytesIO(done.stdout))["item"].to_list() == ["a", "c", "a", "c"]
    assert b"2 users" in done.stderr
    assert not list(tmp_path.iterdir())


def test_formats_may_be_said(run, tmp_path):
    pl.read_csv(tmp_path / "candidates.csv").write_parquet(tmp_path / "candidates")
    code, _, err = run("rerank", "candidates", "--in-format", "parquet", "--out", "slates", "--out-format", "arrow")
    assert code == 0, err
    assert len(pl.read_ipc("slates")) == 7


def test_a_pipe_is_read_like_a_file(tmp_path):
    (tmp_path / "candidates.csv").write_text(GOOD)
    words = f"{sys.executable} -m spdd.cli rerank <(cat candidates.csv) --in-format csv -k 1 -q | head -n 2"
    done = subprocess.run(
        ["bash", "-c", words], env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.stdout.splitlines(), done.stderr) == (["user,slot,item,score,status", "ann,1,a,3.0,met"], "")


def test_schema_version_help(run):
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out)["title"] == "Policy"
    assert run("--version") == (0, f"spdd {spdd.__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("rerank", "schema", "demo"))
    assert run()[0] in (0, 2)  # the help page again
    assert run("rerank")[0] == 2


def test_percentages_say_none_and_all_only_where_it_is_so():
    shown = [terminal._share(n, 100_000) for n in (0, 1, 99_999, 100_000, 50_000)]
    assert shown == ["0.0%", "<0.1%", ">99.9%", "100.0%", "50.0%"]


def test_the_summary_of_nothing_asked_and_of_traffic(capsys):
    summary = Summary("logit", 2, [], rows=4, users=1, filled=2)
    terminal.print_page(terminal.summary_page(summary, 1.0))
    assert "1 user, 2 of 2 slots filled\n4 rows in 1.0 s (4 rows/s)\n" in capsys.readouterr().err
    summary.objectives.append(Tally("a [b]", "at least 3", "traffic", gained=2.0))
    terminal.print_page(terminal.summary_page(summary, 1.0))
    assert re.search(r"a \[b\] +at least 3 per traffic +2\.000 +0\.000 *\n", capsys.readouterr().err)


# ---- what it refuses ----------------------------------------------------------------------------------------------


def with_line(line, at=3):
    lines = GOOD.splitlines()
    lines[at - 1] = line
    return "\n".join(lines) + "\n"


NEW = ["-o", "new creators>=1"]
FAIR = ["-d", "provider-max-min", "--set", "providers=artist"]

# name -> (content of bad.csv, words, what stderr says)
BAD_TABLES = {
    "empty": ("", [], "'bad.csv' cannot be read: it is empty"),
    "header only": (GOOD.splitlines()[0] + "\n", NEW, "'bad.csv' has no rows"),
    "no user": ("id,item,score\na,1,2\n", [], "must have a column 'user', and has none. There is: id, item, score. Or name another with --user"),
    "near": (GOOD, ["-o", "new creator>=1"], "must have a column 'new creator', and has none. Did you mean 'new creators'?"),
    "other case": (GOOD.replace("score", "Score"), [], "no column 'score'|Did you mean 'Score'"),
    "nan": (with_line("ann,b,nan,0,0.25,x"), NEW, "column 'score' of 'bad.csv' must be finite, got nan for user 'ann', item 'b'"),
    "inf": (with_line("ann,b,inf,0,0.25,x"), NEW, "must be finite, got inf for user 'ann', item 'b'"),
    "infinite value": (with_line("ann,b,1,inf,0.25,x"), NEW, "must be finite and not negative, got inf"),
    "negative": (with_line("ann,b,1,-1,0.25,x"), NEW, "column 'new creators' of 'bad.csv' must be finite and not negative, got -1"),
    "nan value": (with_line("ann,b,1,nan,0.25,x"), NEW, "must be finite and not negative, got nan"),
    "text score": (with_line("ann,b,high,0,0.25,x"), NEW, "column 'score' must hold numbers, got 'high' in line 3"),
    "text value": (with_line("ann,b,1,yes,0.25,x"), NEW, "column 'new creators' must hold numbers, got 'yes' in line 3"),
    "labels for values": (GOOD, ["-o", "artist>=1"], "column 'artist' must hold numbers, got 'x' in line 2"),
    "no score": (with_line("ann,b,,0,0.25,x"), NEW, "line 3 has nothing in column 'score'"),
    "no user id": (with_line(",b,1,0,0.25,x"), NEW, "column 'user' of 'bad.csv' must not be empty"),
    "no item": (with_line("ann,,1,0,0.25,x"), NEW, "column 'item' of 'bad.csv' must not be empty, got nothing for user 'ann'"),
    "too many fields": (with_line("ann,b,1,0,0.25,x,x"), NEW, "line 3 has 7 fields, the header has 6"),
    "too few fields": (with_line("ann,b,1,0"), [*NEW, "-o", "margin<=1"], "line 3 has 4 fields, the header has 6"),
    "twice": (with_line("ann,a,1,0,0.25,x"), NEW, "'bad.csv' must name an item once per user, got item 'a' more than once for user 'ann'"),
    "open quote": (with_line('ann,"b,1,0,0.25,x'), NEW, "'bad.csv' cannot be read"),
    "no table": ("\x00\x01\x02", [], "'bad.csv' "),
    "no providers": (GOOD.replace(",x", ",").replace(",y", ",").replace(",z", ","), FAIR, "column 'artist' of 'bad.csv' must name the provider of one item at least, got nothing in all 7 rows. Name another with --set providers="),
    "no such providers": (GOOD, [*FAIR, "--set", "providers=artists"], "must have a column 'artists', and has none. Did you mean 'artist'?"),
    "providers unsaid": (GOOD, FAIR[:2], "needs the setting `providers`, a column of labels that says whose an item is; got {}"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_bad_table_is_refused(run, tmp_path, name):
    text, words, complaint = BAD_TABLES[name]
    (tmp_path / "bad.csv").write_text(text)
    refused(run, tmp_path, ["bad.csv", *words], complaint)


def refused(run, tmp_path, words, complaint, more=("--out", "slates.parquet")):
    there = sorted(p.name for p in tmp_path.iterdir())
    code, out, err = run("rerank", *words, *more)
    assert code == 2, err
    assert out == ""
    assert any(part in err for part in complaint.split("|")), err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    assert sorted(p.name for p in tmp_path.iterdir()) == there


def test_not_utf8(run, tmp_path):
    (tmp_path / "bad.csv").write_bytes(GOOD.replace("ann", "ännä").encode("latin-1"))
    refused(run, tmp_path, ["bad.csv"], "'bad.csv' cannot be read: it is not UTF-8 text")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_broken_files(run, tmp_path, suffix):
    frame = pl.read_csv(tmp_path / "candidates.csv")
    whole = io.BytesIO()
    (frame.write_parquet if suffix == "parquet" else frame.write_ipc)(whole)
    for name, content in {
        "cut": whole.getvalue()[:-20],
        "half": whole.getvalue()[: len(whole.getvalue()) // 2],
        "text": GOOD.encode(),
        "empty": b"",
    }.items():
        (tmp_path / f"{name}.{suffix}").write_bytes(content)
        refused(run, tmp_path, [f"{name}.{suffix}"], f"'{name}.{suffix}' cannot be read")
        _, _, err = run("rerank", f"{name}.{suffix}", "--out", "slates.parquet")
        assert re.search(r"may be cut off, or be no (Parquet|Arrow IPC): write or copy it again\.\n$", err), err
    for name in (f"none.{suffix}", f"folder.{suffix}"):
        (tmp_path / f"folder.{suffix}").mkdir(exist_ok=True)
        assert "cut off" not in run("rerank", name)[2]


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pl.Series("new", ["a", "b"]), "column 'new' of 'bad.parquet' must hold numbers, got String"),
        (pl.Series("new", [[1], [2]]), "column 'new' of 'bad.parquet' must hold numbers, got List(Int64)"),
        (
            pl.Series("new", [1, None]),
            "column 'new' of 'bad.parquet' must not be empty, got nothing for user 1, item 'q'",
        ),
        (pl.Series("new", [1, -2]), "must be finite and not negative, got -2 for user 1, item 'q'"),
        (pl.Series("score", [0.5, float("nan")]), "must be finite, got nan for user 1, item 'q'"),
        (pl.Series("score", [True, False]), "column 'score' of 'bad.parquet' must hold numbers, got Boolean"),
        (pl.Series("score", ["0.5", "0.6"]), "column 'score' of 'bad.parquet' must hold numbers, got String"),
        (pl.Series("item", [["p"], ["q"]]), "column 'item' of 'bad.parquet' must hold names or numbers"),
        (pl.Series("user", [1, None]), "column 'user' of 'bad.parquet' must not be empty"),
        (pl.Series("user", [None, None]), "column 'user' of 'bad.parquet' must hold names or numbers"),
        (pl.Series("user", [1.0, float("nan")]), "column 'user' of 'bad.parquet' must be finite"),
        (pl.Series("item", ["p", "p"]), "item 'p' more than once for user 1"),
    ],
)
def test_bad_columns(run, tmp_path, column, complaint):
    frame = pl.DataFrame({"user": [1, 1], "item": ["p", "q"], "score": [0.5, 0.25], "new": [0, 1]})
    frame.with_columns(column).write_parquet(tmp_path / "bad.parquet")
    refused(run, tmp_path, ["bad.parquet", "-o", "new>=1"], complaint)


def test_the_first_of_several_bad_rows_is_named(run, tmp_path):
    rows = 300_000
    score = np.zeros(rows)
    score[[250_001, 250_100]] = np.nan
    frame = pl.DataFrame({"user": np.arange(rows) % 50_000, "item": np.arange(rows), "score": score})
    frame.write_parquet(tmp_path / "bad.parquet")
    refused(run, tmp_path, ["bad.parquet"], "got nan for user 1, item 250001")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["none.csv"], "'none.csv' cannot be read: there is no such file"),
        (["folder.csv"], "'folder.csv' cannot be read"),
        (["candidates.txt"], "the format of 'candidates.txt' must show in its suffix (.csv, .parquet"),
        (["candidates.csv", "--slots", "0"], "`slots` must be a whole number of at least 1, got 0"),
        (["candidates.csv", "-o", "new creators>3"], "objective must read like 'new creators>=3'"),
        (["candidates.csv", "-o", "new creators>=130%"], "between '0%' and '100%', got '130%'"),
        (["candidates.csv", "-o", "new creators>=-1"], "not negative"),
        (["candidates.csv", "-o", "4<=new creators<=3"], "Lower the floor or raise the cap"),
        (["candidates.csv", "-o", "new creators>=4", "-o", "new creators<=30%"], "Lower the floor or raise the cap"),
        (["candidates.csv", "-o", "new creators>=4", "-o", "new creators>=3"], "two values for its floor"),
        (["candidates.csv", "--at-most-per", "artist"], "must read like 'artist<=2'"),
        (["candidates.csv", "-d", "sppd"], "decoder must be one of spdd, must-fill,"),
        (["candidates.csv", "--set", "rat=1"], "decoder 'spdd' has no setting 'rat'. Did you mean `rate`?"),
        (["candidates.csv", "--set", "rate"], "--set must read like 'rate=0.2'"),
        (["candidates.csv", "--set", "rate=fast"], "`rate` must be"),
        (["candidates.csv", "--set", "scale=odds"], "`scale` must be one of"),
        (["candidates.csv", "--in-format", "xlsx"], "--in-format must be one of csv, parquet, arrow, got 'xlsx'"),
        (["candidates.csv", "--policy", "none.toml"], "policy file 'none.toml' cannot be read"),
        (["candidates.csv", "--policy", "bad.toml"], "policy file 'bad.toml' is not TOML: "),
        (["candidates.csv", "--state", "none/traffic.json"], "the folder of state 'none/traffic.json' does not exist"),
        (["candidates.csv", "--state", "bad.toml"], "cannot be read"),
        (["candidates.csv", "-d", "greedy", "--state", "s.json"], "--state needs a decoder that learns"),
        (["candidates.csv", "-o", "score>=1"], "two columns called 'score'"),
        (["candidates.csv", "--user", "item"], "must differ, and none be 'slot', got item, item and score"),
    ],
)
def test_wrong_words_are_refused(run, tmp_path, words, complaint):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "candidates.txt").write_text(GOOD)
    (tmp_path / "bad.toml").write_text("slots = 3\nslots = ]")
    refused(run, tmp_path, words, complaint)


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("none/slates.csv", "the folder of output 'none/slates.csv' does not exist"),
        ("folder", "must show in its suffix"),
        ("folder.csv", "output 'folder.csv' is a folder"),
        ("candidates.csv", "--out must be another file than candidates"),
        ("folder.csv/../candidates.csv", "--out must be another file than candidates"),
        ("slates.txt", "must show in its suffix"),
        ("/dev/null", "must show in its suffix|must be a file"),
    ],
)
def test_bad_outputs_are_refused(run, tmp_path, out, complaint):
    (tmp_path / "folder.csv").mkdir()
    refused(run, tmp_path, ["candidates.csv"], complaint, ["--out", out])
    assert (tmp_path / "candidates.csv").read_text() == GOOD


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(run, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(run, tmp_path, ["candidates.csv"], "cannot be written: Permission denied", ["--out", "locked/slates.csv"])


def test_an_old_output_survives_a_bad_table(run, tmp_path):
    (tmp_path / "slates.parquet").write_bytes(b"old")
    (tmp_path / "bad.csv").write_text(BAD_TABLES["nan"][0])
    refused(run, tmp_path, ["bad.csv"], "must be finite")
    assert (tmp_path / "slates.parquet").read_bytes() == b"old"


def test_debug_shows_where(run):
    with pytest.raises(ValueError, match="slots"):
        cli.rerank("candidates.csv", slots=0, debug=True)


def test_a_mistake_of_ours_is_one_line_too(run, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("spdd.table.rerank.grids", broken)
    code, out, err = run("rerank", "candidates.csv")
    assert (code, out) == (1, "")
    assert err == "spdd: unexpected ZeroDivisionError: by zero. This is a mistake in spdd; --debug shows where.\n"


def test_as_people_run_it(tmp_path):
    """In a process of its own: the code, the one line, no traceback."""
    done = in_a_process(["rerank", "none.csv", "--out", "slates.csv"], cwd=tmp_path, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "spdd: 'none.csv' cannot be read: there is no such file.\n"
    assert not list(tmp_path.iterdir())


# ---- being stopped --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    users = 20_000
    path = tmp_path_factory.mktemp("large") / "candidates.parquet"
    pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), 50),
            "item": np.tile(np.arange(50), users),
            "score": np.random.default_rng(0).normal(size=users * 50),
        }
    ).write_parquet(path)
    return path


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
def test_stopped_half_way(large, tmp_path, name, code):
    words = ["rerank", str(large), "--out", str(tmp_path / "slates.parquet"), "-k", "20", "-q"]
    process = subprocess.Popen([sys.executable, "-m", "spdd.cli", *words], env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".slates.parquet.*/part-*")):  # it has begun to write
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert not (tmp_path / "slates.parquet").exists()
    if name != "SIGKILL":
        assert not list(tmp_path.iterdir())
        assert b"Traceback" not in err


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_stopped_before_it_could_read(tmp_path):
    words = [sys.executable, "-m", "spdd.cli", "rerank", "-", "--out", str(tmp_path / "slates.csv")]
    process = subprocess.Popen(words, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".slates.csv.*/candidates")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"spdd: stopped; nothing was written.\n"
    assert not list(tmp_path.iterdir())
