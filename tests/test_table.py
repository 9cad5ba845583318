"""A table in, a table out: what comes out is what the decoder itself would say, whatever the order, size or format."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

import spdd
from spdd.policy_file import policy_of
from spdd.table import Target, open_source, rerank_table
from spdd.table.formats import format_of
from spdd.table.rerank import grids, needs, output_names
from spdd.table.source import chunks

NEW = {"slots": 3, "objectives": [{"name": "new", "at_least": 1}]}
OWN = {"user": "user", "item": "item", "score": "score"}


def table(users=40, seed=0, longest=12):
    """Lists of unlike length, users with text ids that sort in another order than they come."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest + 1, users)
    user = np.repeat(random.permutation(users), lengths)
    rows = len(user)
    return pl.DataFrame(
        {
            "user": [f"user {u}" for u in user],
            "item": np.concatenate([random.permutation(longest)[:n] for n in lengths]),
            "score": random.normal(size=rows),
            "new": random.integers(0, 2, rows),
            "margin": random.random(rows),
            "artist": random.choice(["x", "y", "z"], rows),
        }
    )


def write(frame, path):
    {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".arrow": frame.write_ipc}[path.suffix](path)
    return path


def read(path):
    return {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".arrow": pl.read_ipc}[path.suffix](path)


def opened(path, policy):
    return open_source(path, format_of(str(path), None, "--in-format"), {**OWN, **needs(policy)})


def served(frame, said, tmp_path, name="candidates.parquet", out="slates.parquet", **more):
    """The output for this table, and the summary."""
    path, policy = write(frame, tmp_path / name), policy_of(said)
    with Target(str(tmp_path / out), format_of(out, None, "--out-format")) as target:
        summary = rerank_table(policy, opened(path, policy), target, **more)
    return read(tmp_path / out), summary


def by_hand(frame, said):
    """The same, user by user, with the decoder alone."""
    policy, rows = policy_of(said), []
    for one in frame.partition_by("user", maintain_order=True):
        columns = {c: one[c].to_numpy() for c in policy.columns}
        slate = policy.decoder(columns).rerank(one["score"].to_numpy()[None])
        chosen = [i for i in slate.items[0].tolist() if i >= 0]
        status = ("met", "short", "impossible")[slate.status[0]]
        rows += [(one["user"][i], k, one["item"][i], one["score"][i], status) for k, i in enumerate(chosen, 1)]
    return rows


POLICIES = {
    "floor": NEW,
    "floor and cap": {**NEW, "objectives": [*NEW["objectives"], {"name": "dear", "column": "margin", "at_most": 1.5}]},
    "greedy": {"decoder": "greedy", "slots": 4},
    "probabilities": {**NEW, "settings": {"scale": "probability"}},
    "per group": {"slots": 4, "objectives": [{"name": "x", "kind": "per_group", "column": "artist", "most": 1}]},
    "spacing": {"slots": 4, "objectives": [{"name": "x", "kind": "spacing", "column": "artist", "distance": 2}]},
    "coverage": {
        "slots": 4,
        "objectives": [{"name": "x", "kind": "coverage", "column": "artist", "concave": 1, "at_least": 3}],
    },
    "calibration": {
        "slots": 4,
        "objectives": [
            {"name": "t", "kind": "calibration", "column": "artist", "wanted": {"x": 1, "y": 1}, "at_least": 0.9}
        ],
    },
    "mmr": {"decoder": "mmr", "slots": 4, "settings": {"embeddings": ["margin", "new"], "weight": 0.6}},
    "dpp": {"decoder": "dpp", "slots": 4, "settings": {"embeddings": "artist", "weight": 0.6}},
    "calibrated": {"decoder": "calibrated", "settings": {"table": "artist", "wanted": {"x": 3, "z": 1}, "weight": 0.9}},
}


@pytest.mark.parametrize("name", POLICIES)
def test_slates_are_the_decoders_own(name, tmp_path):
    frame = table()
    out, _ = served(frame, POLICIES[name], tmp_path)
    assert out.select("user", "slot", "item", "score", "status").rows() == by_hand(frame, POLICIES[name])


@pytest.mark.parametrize("name", POLICIES)
def test_slots_beyond_every_list_cost_nothing(name, tmp_path):
    """No matrix is as wide as the slots: 40 users with at most 12 candidates and 10 million slots would not fit."""
    frame = table()
    said = {**POLICIES[name], "slots": 10_000_000}
    began = time.process_time()
    out, summary = served(frame, said, tmp_path)
    assert time.process_time() - began < 10
    assert len(out) == len(frame)  # everything is shown
    assert summary.few == summary.users == 40
    alike, other = served(frame, {**said, "slots": 1000}, tmp_path, out="other.parquet")
    assert out.sort("user", "item")["item"].to_list() == alike.sort("user", "item")["item"].to_list()
    if name != "calibration":  # its mix is one of all slots, empty ones too
        assert out["item"].to_list() == alike["item"].to_list()
        assert out["status"].to_list() == alike["status"].to_list()
        assert summary.status.tolist() == other.status.tolist()


@pytest.mark.parametrize("said", [NEW, POLICIES["per group"]], ids=["floor", "per group"])
def test_size_of_chunks_and_order_of_rows_do_not_matter(said, tmp_path, monkeypatch):
    frame = table(users=60)
    whole, _ = served(frame, said, tmp_path)
    small, _ = served(frame, said, tmp_path, rows=7)
    assert small.equals(whole)
    mixed = frame.with_row_index("#").sample(fraction=1, shuffle=True, seed=3)
    mixed = mixed.with_columns(turn=pl.int_range(pl.len())).sort("turn").drop("#", "turn")
    monkeypatch.setattr("spdd.table.source.RUN", 50)
    shuffled, summary = served(mixed, said, tmp_path, rows=7)
    key = ["user", "slot"]
    # Scores are all different, so the slates are the same; users come as they first appear.
    assert shuffled.sort(key).equals(whole.sort(key))
    assert shuffled["user"].unique(maintain_order=True).equals(mixed["user"].unique(maintain_order=True))
    assert summary.users == 60


def test_shared_prices_move_once_a_chunk_however_it_is_cut(tmp_path, monkeypatch):
    said = {"slots": 3, "objectives": [{"name": "new", "at_least": 2, "per": "traffic"}]}
    frame, policy = table(users=300), policy_of(said)
    served(frame, said, tmp_path, state=tmp_path / "whole.json")
    monkeypatch.setattr("spdd.table.rerank.CELLS", 2000)
    served(frame, said, tmp_path, state=tmp_path / "cut.json")
    one, many = (policy.made().load(tmp_path / f"{name}.json").traffic for name in ("whole", "cut"))
    assert (one.batches, one.slates) == (many.batches, many.slates) == (1, 300)
    served(frame, said, tmp_path, state=tmp_path / "cut.json", rows=200)
    assert policy.made().load(tmp_path / "cut.json").traffic.batches > 3


@pytest.mark.parametrize("target", ["in the way", "whole"])
def test_what_was_learnt_and_slates_are_kept_together(tmp_path, monkeypatch, target):
    """Not one without the other, where the disk is full or the power goes as the file takes its place."""
    said = {"slots": 3, "objectives": [{"name": "new", "at_least": 2, "per": "traffic"}]}

    do = {"whole": os.fsync, "in the way": os.replace}[target]

    def fails(*given):
        if target == "whole" or str(given[1]).endswith("slates.parquet"):
            raise OSError(28, "No space left on device")
        return do(*given)

    monkeypatch.setattr(os, do.__name__, fails)
    with pytest.raises((OSError, ValueError), match="No space left"):
        served(table(), said, tmp_path, state=tmp_path / "s.json")
    assert not (tmp_path / "slates.parquet").exists()
    assert (tmp_path / "s.json").exists() == (target != "whole")


def test_a_row_that_cannot_keep_floor_and_cap_is_impossible_in_the_summary_too(tmp_path):
    frame = table(users=20, longest=8).with_columns(new=pl.lit(5.0))
    said = {"slots": 2, "objectives": [{"name": "new", "at_least": 1, "at_most": 3}]}
    _, summary = served(frame, said, tmp_path)
    (tally,) = summary.objectives
    assert summary.status.tolist() == [0, 0, 20]
    assert (tally.met, tally.impossible) == (0, 20)


@pytest.mark.parametrize("shuffled", [False, True])
def test_chunks_hold_whole_users_in_the_tables_order(shuffled, tmp_path, monkeypatch):
    monkeypatch.setattr("spdd.table.source.RUN", 64)
    frame = table(users=80, seed=4).with_row_index("row").with_columns(pl.col("row").cast(pl.Float64).alias("score"))
    if shuffled:
        frame = frame.sample(fraction=1, shuffle=True, seed=1).with_columns(score=pl.int_range(pl.len()) * 1.0)
    source = opened(write(frame, tmp_path / "t.parquet"), policy_of(NEW))
    assert source.together is not shuffled
    assert source.rows == len(frame)
    parts = list(chunks(source, 50, tmp_path))
    assert len(parts) > 5
    assert max(map(len, parts)) <= 50 + 12
    seen = [user for part in parts for user in part["user"].unique(maintain_order=True)]
    assert seen == frame["user"].unique(maintain_order=True).to_list()
    expected = pl.concat(frame.partition_by("user", maintain_order=True))
    assert pl.concat(parts)["score"].equals(expected["score"])


def test_users_whose_hashes_are_equal_stay_apart(tmp_path, monkeypatch):
    frame = pl.DataFrame({"user": ["a", "b"] * 4, "item": range(8), "score": [float(8 - i) for i in range(8)]})
    path = write(frame, tmp_path / "t.parquet")
    monkeypatch.setattr(pl.Series, "hash", lambda self, *a: pl.Series(np.zeros(len(self), dtype=np.uint64)))
    policy = policy_of({"decoder": "greedy", "slots": 2})
    source = opened(path, policy)
    assert (source.count.tolist(), source.together) == ([4, 4], False)
    with Target(str(tmp_path / "out.csv"), "csv") as target:
        rerank_table(policy, source, target)
    assert pl.read_csv(tmp_path / "out.csv").select("user", "item").rows() == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]


def test_long_and_short_lists_share_no_wide_matrix():
    lengths = [1, 500, 2, 3, 499, 1, 1, 8]
    chunk = pl.DataFrame({"user": np.repeat(np.arange(len(lengths)), lengths)})
    found = list(grids(chunk, cells=1000))
    assert sorted(np.concatenate([users for users, _ in found]).tolist()) == list(range(len(lengths)))
    assert max(grid.real.size for _, grid in found) <= 1000
    assert sum(grid.real.sum() for _, grid in found) == sum(lengths)
    assert sum(grid.real.size for _, grid in found) < 2 * sum(lengths)
    for users, grid in found:
        assert (chunk["user"].to_numpy()[grid.row] == users[:, None])[grid.real].all()
    ((users, grid),) = grids(chunk, cells=10**6)  # in one piece where there is room, in the table's order
    assert users.tolist() == list(range(len(lengths)))


def test_unlike_lists_come_out_in_the_tables_order(tmp_path, monkeypatch):
    frame = table(users=50, longest=40)
    whole, _ = served(frame, NEW, tmp_path)
    monkeypatch.setattr("spdd.table.rerank.CELLS", 100)
    assert served(frame, NEW, tmp_path)[0].equals(whole)


@pytest.mark.parametrize("name", ["candidates.csv", "candidates.parquet", "candidates.arrow"])
@pytest.mark.parametrize("out", ["slates.csv", "slates.parquet", "slates.arrow"])
def test_formats_say_the_same(name, out, tmp_path):
    frame = table()
    expected, _ = served(frame, NEW, tmp_path)
    found, _ = served(frame, NEW, tmp_path, name, out)
    expected = expected.with_columns(pl.col("slot").cast(pl.Int64)) if out.endswith("csv") else expected
    assert found.equals(expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"candidates.parquet", name, "slates.parquet", out})


def test_types_stay_what_they_were(tmp_path):
    frame = table().select(
        pl.col("user").cast(pl.Categorical).alias("user"),
        pl.col("item").cast(pl.UInt16),
        pl.col("score").cast(pl.Float32),
        pl.col("new").cast(pl.Boolean),
    )
    out, _ = served(frame, NEW, tmp_path)
    types = {"user": pl.String, "slot": pl.Int32, "item": pl.UInt16, "score": pl.Float32, "new": pl.Boolean}
    assert out.schema == {**types, "dual": pl.Float64, "status": pl.String}


def test_ids_in_a_csv_are_kept_to_the_letter(tmp_path):
    text = "user,item,score,new\n007,1,3,0\n007,2,2,1\n8,3,1,1\n"
    (tmp_path / "c.csv").write_text(text)
    policy = policy_of({**NEW, "slots": 1})
    with Target(str(tmp_path / "out.parquet"), "parquet") as target:
        rerank_table(policy, opened(tmp_path / "c.csv", policy), target)
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out.select("user", "item", "score", "new").rows() == [("007", 2, 2.0, 1), ("8", 3, 1.0, 1)]
    assert out.schema["item"] == pl.Int64


def test_shuffled_whole_numbers_in_a_csv(tmp_path):
    frame = table().with_columns(pl.col("user").str.slice(5).cast(pl.Int64)).sample(fraction=1, shuffle=True, seed=0)
    out, summary = served(frame, NEW, tmp_path, "candidates.csv")
    assert out.equals(served(frame, NEW, tmp_path)[0])
    assert summary.users == 40


def test_a_csv_may_change_its_mind_late(tmp_path):
    """Types guessed from the first rows would be wrong."""
    rows = [f"{i},{i},{i},{i % 2},{i}" for i in range(3000)] + ["u,x,0.5,0.25,z"]
    (tmp_path / "c.csv").write_text("\n".join(["user,item,score,new,artist", *rows]) + "\n")
    policy = policy_of({"slots": 1, "objectives": [*NEW["objectives"], *POLICIES["per group"]["objectives"]]})
    with Target(str(tmp_path / "out.parquet"), "parquet") as target:
        rerank_table(policy, opened(tmp_path / "c.csv", policy), target)
    assert pl.read_parquet(tmp_path / "out.parquet").row(-1)[:5] == ("u", 1, "x", 0.5, 0.25)


def test_columns_of_the_output(tmp_path):
    frame = table().rename({"user": "u", "score": "what the model says"})
    path = write(frame, tmp_path / "c.parquet")
    policy = policy_of(POLICIES["floor and cap"])
    names = {"user": "u", "item": "item", "score": "what the model says", **needs(policy)}
    source = open_source(path, "parquet", names)
    with Target(str(tmp_path / "out.parquet"), "parquet") as target:
        rerank_table(policy, source, target)
    columns = ["u", "slot", "item", "what the model says", "new", "dear", "dual new", "dual dear", "status"]
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out.columns == columns == output_names(source, policy)
    joined = out.join(frame, on=["u", "item"], suffix=" then")
    assert len(joined) == len(out)
    assert joined["dear"].equals(joined["margin"].rename("dear"))
    assert joined["new"].equals(joined["new then"].rename("new"))


def test_values_that_depend_on_the_slate_add_up(tmp_path):
    frame = table()
    out, summary = served(frame, POLICIES["coverage"], tmp_path)
    covered = out.join(frame, on=["user", "item"]).group_by("user", maintain_order=True)
    found = covered.agg(pl.col("x").sum(), pl.col("artist").n_unique())
    assert found["x"].to_list() == found["artist"].to_list()
    assert summary.objectives[0].gained == found["x"].sum()


def test_two_columns_of_one_name_are_refused(tmp_path):
    for name in ("slot", "status", "dual", "score", "item"):
        said = {**NEW, "objectives": [{"name": name, "column": "new"}]}
        with pytest.raises(ValueError, match=f"two columns called '{name}'.*policy file"):
            served(table(), said, tmp_path)
        assert not (tmp_path / "slates.parquet").exists()


def test_the_summary_counts(tmp_path):
    frame = pl.DataFrame(
        {
            "user": ["a"] * 4 + ["b"] * 3 + ["c"],
            "item": [1, 2, 3, 4, 1, 2, 3, 1],
            "score": [4.0, 3.0, 2.0, 1.0, 4.0, 3.0, 2.0, 4.0],
            "new": [0, 0, 1, 1, 1, 0, 0, 0],
        }
    )
    said = {"slots": 2, "objectives": [{"name": "new", "at_least": 1}]}
    _, summary = served(frame, said, tmp_path)
    assert (summary.rows, summary.users, summary.filled, summary.few) == (8, 3, 5, 1)
    assert summary.status.tolist() == [2, 0, 1]
    (tally,) = summary.objectives
    assert (tally.gained, tally.greedy, tally.met, tally.impossible) == (2, 1, 2, 1)
    assert (summary.greedy - summary.relevance, summary.scale) == (1.0, "logit")
    _, summary = served(frame, {**said, "decoder": "greedy"}, tmp_path)
    assert summary.status.tolist() == [1, 1, 1]
    assert summary.greedy == summary.relevance


def test_what_is_learnt_goes_on(tmp_path):
    said = {"slots": 3, "objectives": [{"name": "new", "at_least": 2, "per": "traffic"}]}
    frame, state = table(users=90), tmp_path / "traffic.json"
    first, _ = served(frame, said, tmp_path, state=state, rows=100)
    after = json.loads(state.read_text())
    assert after["slates"] == 90
    assert first["dual"].n_unique() > 1  # the shared price moved between batches
    second, _ = served(frame, said, tmp_path, state=state, rows=100)
    assert json.loads(state.read_text())["slates"] == 180
    assert second["dual"][0] == pytest.approx(after["price"][0])
    policy = policy_of(said)
    assert policy.made().load(state).traffic.slates == 180


def test_state_needs_a_decoder_that_learns(tmp_path):
    with pytest.raises(ValueError, match=r"decoder that learns \(spdd, .*Greedy does not"):
        served(table(), {"decoder": "greedy"}, tmp_path, state=tmp_path / "s.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"traffic state .*bad.json' cannot be read"):
        served(table(), NEW, tmp_path, state=tmp_path / "bad.json")
    with pytest.raises(ValueError, match="does not exist"):
        served(table(), NEW, tmp_path, state=tmp_path / "no" / "s.json")
    assert not (tmp_path / "slates.parquet").exists()


# ---- fair to providers over all of the table -----------------------------------------------------------------------

FAIR = {
    "decoder": "provider-max-min",
    "slots": 3,
    "settings": {"providers": "of", "weight": 0.8, "rate": 0.3},
}


def offered(users=400, providers=6, seed=0):
    """Candidates of a few providers each, so that no user sees them all; the higher the number, the less is it wanted."""
    random = np.random.default_rng(seed)
    lengths = random.integers(4, 12, users)
    of = random.integers(0, providers, lengths.sum())
    return pl.DataFrame(
        {
            "user": np.repeat(random.permutation(users), lengths),
            "item": np.concatenate([random.permutation(20)[:n] for n in lengths]),
            "score": random.normal(size=len(of)) - 0.4 * of,
            "of": np.array([*"fedcba"])[of],
            "new": random.integers(0, 2, len(of)),
        }
    )


def shares(out, frame):
    """The part of all slots each provider got."""
    got = out.join(frame.select("user", "item", "of"), on=["user", "item"])["of"].value_counts()
    return {name: count / len(out) for name, count in got.rows()}


def test_the_worst_off_provider_rises_over_the_table(tmp_path):
    frame = offered()
    fair, summary = served(frame, FAIR, tmp_path, rows=200)
    plain, _ = served(frame, {"decoder": "greedy", "slots": 3}, tmp_path, rows=200)
    fair, plain = shares(fair, frame), shares(plain, frame)
    assert min(fair, key=fair.get) in "ab"
    assert min(fair.values()) > 2.5 * min(plain.values())
    assert min(fair.values()) > 0.9 / 6
    assert summary.exposed.least == pytest.approx((6 * min(fair.values()), 6 * min(plain.values())))
    assert summary.relevance < summary.greedy


def test_more_is_due_to_some(tmp_path):
    frame = offered()
    said = {**FAIR, "settings": {**FAIR["settings"], "weights": {"a": 3, "b": 0.5, "nobody": 7}}}
    out, _ = served(frame, said, tmp_path, rows=200)
    found, even = shares(out, frame), shares(served(frame, FAIR, tmp_path, rows=200)[0], frame)
    assert found["a"] > 1.5 * even["a"]
    assert found["b"] < even["b"]


def test_a_chunk_is_one_step_by_hand(tmp_path, monkeypatch):
    """Slates and prices are what the decoder itself makes of the users of each chunk, in however many matrices they are."""
    frame = offered(users=60)
    users = frame.partition_by("user", maintain_order=True)
    labels = sorted(frame["of"].unique())
    policy = policy_of(FAIR)
    path = write(frame, tmp_path / "t.parquet")
    by_hand, decoder = [], policy.fair_to(labels)
    for chunk in chunks(opened(path, policy), 100, tmp_path):
        with decoder.one_batch():
            for one in users:
                if one["user"][0] in chunk["user"]:
                    codes = [labels.index(name) for name in one["of"]]
                    items = decoder.bind({}, providers=codes).rerank(one["score"].to_numpy()[None]).items[0]
                    by_hand += [(one["user"][0], one["item"][int(i)]) for i in items if i >= 0]
    for cells in (10**6, 40):
        monkeypatch.setattr("spdd.table.rerank.CELLS", cells)
        (tmp_path / "s.json").unlink(missing_ok=True)
        out, _ = served(frame, FAIR, tmp_path, rows=100, state=tmp_path / "s.json")
        assert out.select("user", "item").rows() == by_hand
        assert policy.fair_to(labels).load(tmp_path / "s.json").exposure == decoder.exposure


@pytest.mark.parametrize("rows", [30, 200, 10**6])
def test_size_of_chunks_does_not_matter_for_who_is_told_apart(rows, tmp_path):
    frame, state = offered(), tmp_path / "s.json"
    out, _ = served(frame, FAIR, tmp_path, rows=rows, state=state)
    found = json.loads(state.read_text())
    assert found["provider"] == [*"abcdef"]
    got = shares(out, frame)
    assert found["shown"] == [round(got[name] * len(out)) for name in "abcdef"]


def test_rows_of_users_in_another_order_change_nothing(tmp_path, monkeypatch):
    """Where users first appear in the same order, the same users meet in a chunk, whatever stands between."""
    monkeypatch.setattr("spdd.table.source.RUN", 300)
    frame = offered().with_row_index("#")
    first = pl.col("#") == pl.col("#").min().over("user")
    rest = frame.filter(~first).sample(fraction=1, shuffle=True, seed=5)
    mixed = pl.concat([frame.filter(first), rest]).drop("#")
    whole, _ = served(frame.drop("#"), FAIR, tmp_path, rows=200)
    assert served(mixed, FAIR, tmp_path, rows=200)[0].equals(whole)


def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path):
    frame = offered()
    policy = policy_of(FAIR)
    parts = list(chunks(opened(write(frame, tmp_path / "t.parquet"), policy), 200, tmp_path))
    half = pl.concat(parts[: len(parts) // 2])["user"].unique()
    monday, tuesday = frame.filter(pl.col("user").is_in(half)), frame.filter(~pl.col("user").is_in(half))
    whole, _ = served(frame, FAIR, tmp_path, rows=200, state=tmp_path / "whole.json")
    days = [served(day, FAIR, tmp_path, rows=200, state=tmp_path / "days.json")[0] for day in (monday, tuesday)]
    # Chunks of the second day begin anew, so only their prices on the first morning are the same for sure.
    assert days[0].equals(whole[: len(days[0])])
    ahead = len(parts[len(parts) // 2]["user"].unique())
    first = days[1]["user"].unique(maintain_order=True)[: ahead - 1]
    after = whole[len(days[0]) :]
    assert days[1].filter(pl.col("user").is_in(first)).equals(after.filter(pl.col("user").is_in(first)))
    found = [json.loads((tmp_path / name).read_text()) for name in ("whole.json", "days.json")]
    assert found[0]["slates"] == found[1]["slates"] == 400


def test_another_days_providers(tmp_path):
    """Kept under their labels: a second table without some and with others goes on with those that are left."""
    state = tmp_path / "s.json"
    served(offered(), FAIR, tmp_path, rows=200, state=state)
    before = policy_of(FAIR).fair_to([*"abcdef"]).load(state).exposure
    price = dict(zip(before.provider, before.price, strict=True))
    second = offered(seed=1).filter(pl.col("of") != "b").with_columns(pl.col("of").replace({"f": "2 new"}))
    learnt = policy_of(FAIR).fair_to(["2 new", *"acde"]).load(state).exposure
    assert learnt.price == pytest.approx([0, *(price[name] for name in "acde")])
    served(second, FAIR, tmp_path, rows=200, state=state)
    found = json.loads(state.read_text())
    assert found["provider"] == ["2 new", "a", "c", "d", "e"]
    assert [entry[:2] for entry in found["away"]] == [["b", price["b"]], ["f", price["f"]]]
    assert found["shown"][0] > 0
    with pytest.raises(ValueError, match=r"belongs to other providers: it holds 5 .*none of which this decoder has"):
        served(second.with_columns(pl.lit("z").alias("of")), FAIR, tmp_path, state=state)


OF_ARTIST = {
    "text": pl.col("artist"),
    "some empty": pl.when(pl.col("artist") != "x").then(pl.col("artist")),
    "whole numbers": pl.col("artist").replace_strict({"x": 1, "y": -1, "z": 10**10}, return_dtype=pl.Int64),
    "numbers and none": pl.col("artist").replace_strict({"x": 1.0, "y": None, "z": 2.5}, return_dtype=pl.Float64),
    "true or false": pl.col("artist") == "x",
}
BY_ARTIST = {
    name: POLICIES[name] for name in ("per group", "spacing", "coverage", "dpp")
} | {
    "calibration": {
        "slots": 4,
        "objectives": [{"name": "t", "kind": "calibration", "column": "artist", "wanted": {"1": 1, "y": 2}, "at_least": 0.8}],
    },
    "calibrated": {"decoder": "calibrated", "settings": {"table": "artist", "wanted": {"1": 3, "true": 1}, "weight": 0.9}},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_ARTIST)
@pytest.mark.parametrize("labels", OF_ARTIST)
@pytest.mark.parametrize("file", ["candidates.parquet", "candidates.csv"])
def test_labels_mean_on_disk_what_they_mean_in_memory(name, labels, file, tmp_path):
    if file.endswith("csv") and labels == "numbers and none":
        pytest.skip("a CSV says 1.0, which is text there")
    frame = table(users=15).with_columns(artist=OF_ARTIST[labels])
    out, _ = served(frame, BY_ARTIST[name], tmp_path, file)
    assert out.select("user", "slot", "item", "score", "status").rows() == by_hand(frame, BY_ARTIST[name])


@pytest.mark.parametrize("name", ["candidates.csv", "candidates.parquet"])
@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_label_is_no_provider(name, empty, tmp_path):
    frame = offered(users=50).with_columns(of=pl.when(pl.col("of") == "a").then(pl.lit(empty)).otherwise(pl.col("of")))
    served(frame, FAIR, tmp_path, name, rows=100, state=tmp_path / "s.json")
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["provider"] == [*"bcdef"]
    assert 0 < sum(found["shown"]) < 150


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (pl.col("new"), ["0", "1"]),
        (pl.when(pl.col("new") == 1).then(17.0), ["17"]),  # a missing label made whole numbers into floats
        (pl.when(pl.col("new") == 1).then(17.0).otherwise(float("nan")), ["17"]),
        (pl.col("new") + 0.5, ["0.5", "1.5"]),
        (pl.col("new").cast(pl.Boolean), ["false", "true"]),
        (pl.col("of").cast(pl.Categorical), [*"abcdef"]),
        (pl.lit(None, pl.String), None),
        (pl.lit(None), None),
        (pl.lit(""), None),
    ],
)
def test_labels_of_providers_may_be_anything(column, names, tmp_path):
    frame, state = offered(users=50).with_columns(column.alias("of")), tmp_path / "s.json"
    if names is None:
        with pytest.raises(
            ValueError, match=r"column 'of' of .* must name the provider of one item at least, got nothing"
        ):
            served(frame, FAIR, tmp_path)
    else:
        served(frame, FAIR, tmp_path, state=state)
        assert json.loads(state.read_text())["provider"] == names


def test_the_same_column_may_be_capped(tmp_path):
    """Objectives are only counted by this decoder, of the same column too."""
    said = {**FAIR, "objectives": [{"name": "x", "kind": "per_group", "column": "of", "most": 1}]}
    out, summary = served(offered(users=50), said, tmp_path, rows=100)
    assert summary.objectives[0].gained == out["x"].sum() > 0


# ---- what it leaves behind -----------------------------------------------------------------------------------------


def test_nothing_is_left_when_it_fails(tmp_path):
    path = write(table(), tmp_path / "c.parquet")
    (tmp_path / "slates.parquet").write_bytes(b"old")
    policy = policy_of(NEW)

    def fail(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Target(str(tmp_path / "slates.parquet"), "parquet") as target:
        rerank_table(policy, opened(path, policy), target, rows=20, progress=fail)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.parquet", "slates.parquet"]
    assert (tmp_path / "slates.parquet").read_bytes() == b"old"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "slates.parquet").symlink_to(tmp_path / "real" / "slates.parquet")
    served(table(), NEW, tmp_path)
    assert (tmp_path / "slates.parquet").is_symlink()
    assert len(pl.read_parquet(tmp_path / "real" / "slates.parquet"))


PEAK = """
import resource, sys
sys.argv = ["spdd", *sys.argv[1:]]
from spdd.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet", "shuffled", "providers"])
def test_memory_does_not_grow_with_the_table(kind, tmp_path):
    """Twenty times the rows, whose columns alone are 10 bytes x 5 more, cost little more memory."""
    peak = []
    for users in (500, 10_000):
        rows = users * 50
        random = np.random.default_rng(0)
        frame = pl.DataFrame(
            {
                "user": np.repeat(np.arange(users), 50),
                "item": np.tile(np.arange(50), users),
                "score": random.normal(size=rows),
                "new": random.integers(0, 2, rows),
                "text": "a long text that nobody needs",
                "of": random.integers(0, 1000, rows),
            }
        )
        path = tmp_path / ("c.csv" if kind == "csv" else "c.parquet")
        frame = frame.sample(fraction=1, shuffle=True, seed=0) if kind == "shuffled" else frame
        write(frame, path)
        out = tmp_path / "slates.parquet"
        decoder = ["provider-max-min", "--set", "providers=of"] if kind == "providers" else ["must-fill"]
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                PEAK,
                "rerank",
                str(path),
                "-o",
                "new>=3",
                "-q",
                "-d",
                *decoder,
                "--out",
                str(out),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert len(pl.read_parquet(out)) == users * 10
        peak.append(int(done.stdout))
    assert peak[1] - peak[0] < 120, peak


def test_greedy_is_what_is_compared_with(tmp_path):
    frame = table()
    out, summary = served(frame, {"decoder": "greedy", "slots": 5}, tmp_path)
    assert summary.relevance == pytest.approx(out["score"].sum())
    scores = [one["score"].to_numpy()[None] for one in frame.partition_by("user", maintain_order=True)]
    assert summary.greedy == pytest.approx(sum(np.nansum(spdd.Greedy(slots=5).rerank(s).relevance) for s in scores))
