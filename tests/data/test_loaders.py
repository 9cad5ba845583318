"""What every loader promises, on tiny files in the publishers' formats.

Each world has the same events: ann takes a, b, b again at another time, c and d at one moment in this order; ben takes
b. One event stands in the file twice. Then come lines that are malformed, each in its own way.
"""

import gzip
import json
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from spdd.data import amazon, kuairand, movielens, playlists, table

EVENTS = [("ann", "b", 20), ("ben", "b", 5), ("ann", "a", 10), ("ann", "b", 30), ("ann", "c", 40), ("ann", "d", 40)]
TWICE = EVENTS[0]
WANTED = [(u, i, t) for u, i, t in sorted(EVENTS, key=lambda e: (e[0], e[2]))]
LATIN = b"\xff\xfe"


class World(NamedTuple):
    """One format. row: an event as a line; bad: malformed lines and the reasons they are skipped for"""

    read: object
    file: str
    row: object
    bad: list[tuple[bytes, str]]
    header: bytes = b""
    unit: int = 1000


def json_world(file, user, item, time, unit):
    def row(u, i, t):
        return json.dumps({user: u, item: i, time: t, "reviewText": 'fine, "really"\u2028'}).encode()

    def broken(**change):
        fields = {user: "ann", item: "a", time: 1} | change
        return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()

    bad = [
        (row("ann", "a", 1)[:-9], "broken JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100_000, "broken JSON"),
        (b'{"' + user.encode() + b'": "' + LATIN + b'"}', "not UTF-8"),
        (broken(**{user: ...}), "no user"),
        (broken(**{user: ["ann"]}), "no user"),
        (broken(**{item: ""}), "no item"),
        (broken(**{item: None}), "no item"),
        (broken(**{item: "x" * 300}), "item is no id"),
        (broken(**{item: "a\0b"}), "item is no id"),
        (broken(**{time: ...}), "no time"),
        (broken(**{time: "yesterday"}), "time is not a whole number"),
        (broken(**{time: 1.5}), "time is not a whole number"),
        (broken(**{time: True}), "time is not a whole number"),
        (broken(**{time: 10**40}), "time is not a whole number"),
        (broken(**{time: float("nan")}), "time is not a whole number"),
        (broken(**{time: -1}), "negative time"),
        (broken(**{time: 10**17}), "time past the year 5000"),
    ]
    return World(amazon.read, file, row, bad, unit=unit)


def text_world(read, file, shape, header=b"", unit=1000, bad=()):
    """shape: the line of an event, with {u}, {i}, {t}"""

    def row(u, i, t):
        return shape.format(u=u, i=i, t=t).encode()

    common = [
        (row("ann", "a", "soon"), "time is not a whole number"),
        (row("ann", "a", ""), "no time"),
        (row("", "a", 1), "no user"),
        (row("ann", "", 1), "no item"),
        (row("ann", "a", 1).replace(b"ann", LATIN), "not UTF-8"),
        (b"ann", "too few fields"),
        (row("ann", "a", 1) + shape[shape.index("}") + 1 : shape.index("{", 4)].encode() * 9, "too many fields"),
        *bad,
    ]
    return World(read, file, row, common, header, unit)


NEGATIVE = (b"ann,a,-1", "negative time")
WORLDS = {
    "amazon 2014": json_world("reviews_Toys.json", "reviewerID", "asin", "unixReviewTime", 1000),
    "amazon 2018": json_world("Toys_5.json", "reviewerID", "asin", "unixReviewTime", 1000),
    "amazon 2023": json_world("Toys.jsonl", "user_id", "parent_asin", "timestamp", 1),
    "amazon 2023 csv": text_world(
        amazon.read, "Toys.csv", "{u},{i},4.0,{t}", b"user_id,parent_asin,rating,timestamp", 1,
        bad=[(b'"ann,a,4.0,1', "broken quotes"), (b"ann,a,4.0,-1", "negative time"), (b"ann,a,good,1", "rating is not a number"),
             (b"ann,a,inf,1", "rating is not a number")],
    ),
    "playlists": text_world(
        playlists.read, "playlists.csv", "{u},{i},{t}", b"playlist_id,track_id,pos", 1,
        bad=[(b'ann,"a"b,1', "broken quotes")],
    ),
    "kuairand": text_world(
        kuairand.read, "log_standard_4_08_to_4_21_pure.csv", "{u},{i},20220408,900,{t},1,0,0,1",
        b"user_id,video_id,date,hourmin,time_ms,is_click,is_like,long_view,tab", 1,
        bad=[(b"ann,a,20220408,900,-5,1,0,0,1", "negative time"), (b"ann,a,20220408,900,5,yes,0,0,1", "is_click is not a whole number")],
    ),
    "movielens 100k": text_world(
        movielens.read, "u.data", "{u}\t{i}\t3\t{t}", bad=[(b"ann\ta\t3\t-4", "negative time")]
    ),
    "movielens 1m": text_world(movielens.read, "ratings.dat", "{u}::{i}::3::{t}", bad=[(b"ann::a::3::-4", "negative time")]),
    "movielens latest": text_world(
        movielens.read, "ratings.csv", "{u},{i},3.5,{t}", b"userId,movieId,rating,timestamp", bad=[(b"ann,a,3,-4", "negative time")]
    ),
    "table": text_world(table.read, "some.csv", "{u},{i},{t}", b"user,item,time", bad=[NEGATIVE]),
    "tab-separated table": text_world(
        table.read, "some.tsv", "{u}\t{i}\t{t}", b"user\titem\ttime", bad=[(b"ann\ta\t-1", "negative time")]
    ),
}  # fmt: skip


@pytest.fixture(params=WORLDS)
def world(request):
    return WORLDS[request.param]


def write(world, folder, bad=(), end=b"\n", zipped=False):
    lines = [world.header] if world.header else []
    lines += [world.row(*e) for e in [*EVENTS, TWICE]] + list(bad)
    path = Path(folder) / (world.file + ".gz" * zipped)
    path.write_bytes((gzip.compress if zipped else bytes)(end.join(lines) + end))
    return path


def events(data):
    return data.events.select("user", "item", "time").rows()


def wanted(world):
    return [(u, i, t * world.unit) for u, i, t in WANTED]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("zipped", [False, True])
def test_events_come_in_order_without_duplicates(world, tmp_path, end, zipped):
    path = write(world, tmp_path, end=end, zipped=zipped)
    for given in (path, tmp_path) if world.read is not table.read else (path,):
        data = world.read(given)
        assert events(data) == wanted(world)
        assert data.items["item"].to_list() == ["a", "b", "c", "d"]
        report = data.report
        assert (report.read, report.kept, report.duplicates, report.skipped) == (7, 6, 1, {})


def test_malformed_lines_are_counted_by_reason(world, tmp_path):
    path = write(world, tmp_path, [line for line, _ in world.bad])
    data = world.read(path, most_bad=0.9)
    assert events(data) == wanted(world)
    reasons = [reason for _, reason in world.bad]
    assert data.report.skipped == {r: reasons.count(r) for r in sorted(set(reasons))}
    assert data.report.read == 7 + len(reasons)


def test_each_malformed_line_is_told_with_its_place(world, tmp_path):
    for bad, reason in world.bad:
        path = write(world, tmp_path, [bad])
        with pytest.raises(ValueError, match="may be malformed") as caught:
            world.read(path)
        line = 8 + bool(world.header)
        said = str(caught.value)
        for part in ("at most 0.01", "got 1 of 8", f"(1 {reason})", f"line {line} of '{path}'", "raise `most_bad`"):
            assert part in said


def test_the_limit_is_a_share(world, tmp_path):
    path = write(world, tmp_path, [world.bad[0][0]])
    assert events(world.read(path, most_bad=1 / 8)) == wanted(world)
    with pytest.raises(ValueError, match="may be malformed"):
        world.read(path, most_bad=0.124)
    for wrong in (-0.1, 1.1, "1%", float("nan")):
        with pytest.raises(ValueError, match="`most_bad` must be a share"):
            world.read(path, most_bad=wrong)


def test_a_cut_off_archive_is_refused(world, tmp_path):
    path = write(world, tmp_path, zipped=True)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"must be a whole gzip file.*Fetch it again"):
        world.read(path)


def test_nothing_to_read_is_refused(world, tmp_path):
    path = tmp_path / world.file
    for content in (b"", b"\n\n", world.header):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"must hold at least one event, and holds none in 0 lines"):
            world.read(path)
    path.unlink()
    for missing in (path, tmp_path):
        with pytest.raises(ValueError, match=f"'{missing}' must"):
            world.read(missing)


def test_small_batches_change_nothing(world, tmp_path, monkeypatch):
    path = write(world, tmp_path, [line for line, _ in world.bad if len(line) < 1000])
    whole = world.read(path, most_bad=0.9)
    monkeypatch.setattr("spdd.data.lines.BATCH", 16)
    pieces = world.read(path, most_bad=0.9)
    assert pieces.events.equals(whole.events)
    assert pieces.report == whole.report
    with pytest.raises(ValueError, match="may be malformed"):
        world.read(path)


def test_progress_hears_of_every_byte(world, tmp_path):
    path = write(world, tmp_path)
    heard = []
    world.read(path, progress=heard.append)
    assert sum(heard) == path.stat().st_size


@pytest.mark.parametrize("kind", WORLDS)
def test_any_bytes_are_read_or_refused_in_words(kind, tmp_path):
    world = WORLDS[kind]
    whole = write(world, tmp_path, [line for line, _ in world.bad if len(line) < 1000]).read_bytes()
    path = tmp_path / world.file
    random = Random(kind)
    for _ in range(60):
        hurt = bytearray(whole)
        for _ in range(random.randint(1, 6)):
            at = random.randrange(len(hurt))
            hurt[at : at + random.choice((0, 1, 1, 9))] = random.choice(
                (b"", b'"', b"\0", b"\n", b"\xff", b",", b"\r", b"\\", b"{", bytes([random.randrange(256)]) * 3)
            )
        path.write_bytes(bytes(hurt))
        try:
            data = world.read(path, most_bad=0.99)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        report = data.report
        assert report.read == report.kept + report.duplicates + sum(report.skipped.values())
        assert (data.events["time"] >= 0).all() or kind == "playlists"
        assert data.events.null_count().select("user", "item", "time").row(0) == (0, 0, 0)
