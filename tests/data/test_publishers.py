"""What is particular to one publisher: item files, layouts, odd encodings, and the packed sets themselves."""

import gzip
import json

import polars as pl
import pytest

from spdd.data import amazon, kuairand, movielens, playlists, table
from spdd.data.split import at_time, leave_last


def attributes(data):
    return {row.pop("item"): row for row in data.items.rows(named=True)}


def lines(path, *rows):
    """A file of the given lines: objects as JSON, text as it is, bytes too."""
    made = [r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in rows]
    path.write_bytes(b"\n".join(made) + b"\n")
    return path


# ---- Amazon -----------------------------------------------------------------------------------------------------------


def reviews_2014(folder, **more):
    rows = [{"reviewerID": "A1", "asin": i, "unixReviewTime": t, "overall": 5.0} for t, i in enumerate("xyz")]
    return lines(folder / "reviews_Toys_5.json", *rows)


def test_metadata_of_2014_are_python_dicts(tmp_path):
    reviews_2014(tmp_path)
    lines(
        tmp_path / "meta_Toys.json",
        "{'asin': 'x', 'title': \"Bear's \\u00e9t\\xe9\", 'categories': [['Toys', 'Plush'], ['Toys', 'Bears']], 'brand': 'Teddy'}",
        "{'asin': 'y', 'categories': [['Toys']], 'title': '', 'brand': None}",
        "{'asin': 'x', 'title': 'again'}",
        "{'asin': 'unsold', 'title': 'nobody reviewed it'}",
        "{'asin': 'z', 'title': __import__('os').getcwd()}",
        "{'asin': 'z', 'title': 'cut",
        b"{'asin': 'z', 'title': '\xff'}",
        "{'title': 'no name'}",
    )
    data = amazon.read(tmp_path, most_bad=0.9)
    assert attributes(data) == {
        "x": {"title": "Bear's été", "categories": ["Toys", "Plush", "Bears"], "brand": "Teddy"},
        "y": {"title": None, "categories": ["Toys"], "brand": None},
        "z": {"title": None, "categories": None, "brand": None},
    }
    assert data.report.items_skipped == {"broken JSON": 2, "no item": 1, "not UTF-8": 1}
    assert (data.report.items_read, data.report.items_kept, data.report.items_duplicates) == (8, 2, 1)
    assert data.events["rating"].to_list() == [5.0] * 3
    with pytest.raises(
        ValueError, match=r"of the lines of metadata may be malformed, got 4 of 8.*line 5 of .*meta_Toys"
    ):
        amazon.read(tmp_path)


def test_metadata_of_2018_and_2023(tmp_path):
    old, new = tmp_path / "2018", tmp_path / "2023"
    old.mkdir()
    new.mkdir()
    lines(old / "Toys.json", {"reviewerID": "A1", "asin": "x", "unixReviewTime": 1, "overall": 4.0})
    lines(
        old / "meta_Toys.json",
        {"asin": "x", "title": "Bear", "category": ["Toys", "Plush", "Toys"], "brand": "\n Teddy"},
    )
    lines(
        new / "Toys.jsonl",
        {"user_id": "A", "asin": "x-red", "parent_asin": "x", "timestamp": 1588687728923, "rating": 4.0},
        {"user_id": "A", "asin": "y", "parent_asin": "y", "sort_timestamp": 1588687728924, "rating": 1.0},
    )
    lines(
        new / "meta_Toys.jsonl",
        {"parent_asin": "x", "title": "Bear", "categories": ["Toys", "Plush"], "store": "Teddy", "price": None},
        {"parent_asin": "y", "title": "Half \ud83d", "categories": [], "store": None},
    )
    bear = {"title": "Bear", "categories": ["Toys", "Plush"], "brand": "Teddy"}
    assert attributes(amazon.read(old)) == {"x": bear}
    assert amazon.read(old).events["time"].to_list() == [1000]
    assert attributes(amazon.read(new)) == {"x": bear, "y": {"title": "Half ?", "categories": [], "brand": None}}
    assert amazon.read(new).events["time"].to_list() == [1588687728923, 1588687728924]
    apart = amazon.read(new / "Toys.jsonl", meta=new / "meta_Toys.jsonl")
    assert apart.items.equals(amazon.read(new).items)


def test_the_same_reviews_twice_are_refused(tmp_path):
    reviews_2014(tmp_path)
    lines(tmp_path / "Toys.jsonl", {})
    with pytest.raises(
        ValueError, match=r"holds? each set of reviews once, and .*'Toys.jsonl' and 'reviews_Toys_5.json'"
    ):
        amazon.read(tmp_path)


def test_ratings_without_a_header_are_told(tmp_path):
    lines(tmp_path / "ratings_Toys.csv", "A1,x,5.0,100")
    with pytest.raises(ValueError, match=r"must have a column 'user_id', and has A1, x, 5\.0, 100"):
        amazon.read(tmp_path)


def packed(folder, *sequences):
    lines(
        folder / "items.tsv",
        "item_id\tasin\tbrand\tcategories\tidgenrec_text_id",
        "1\tB01\tGhost\tHunting & Fishing|Hunting\tghost tool",
        '2\tB02\t\t\t"odd quote',
    )
    lines(folder / "sequences.tsv", "user_id\titem_ids\tdelta_seconds", *sequences)
    return folder


def test_packed_sequences(tmp_path):
    data = amazon.read(packed(tmp_path, "7\t2 1 2\t0 0 86400"))
    assert data.events.rows() == [("7", "B02", 0), ("7", "B01", 0), ("7", "B02", 86_400_000)]
    assert attributes(data) == {
        "B01": {"brand": "Ghost", "categories": ["Hunting & Fishing", "Hunting"], "text": "ghost tool"},
        "B02": {"brand": None, "categories": [], "text": '"odd quote'},
    }
    with pytest.raises(ValueError, match="Use `leave_last`"):
        at_time(data)


def test_packed_sequences_with_faults(tmp_path):
    data = amazon.read(packed(tmp_path, "7\t2 1 2\t0 5 5", "8\t1 2\t0", "9\t1 9 2 1\t0 1 -1 x", "10\t\t"), most_bad=0.9)
    assert data.events.rows() == [("7", "B02", 0), ("7", "B01", 5000), ("7", "B02", 10_000), ("9", "B01", 0)]
    skipped = {"no item": 2, "negative time": 1, "not as many times as items": 1, "time is not a whole number": 1}
    assert data.report.skipped == dict(sorted(skipped.items()))
    assert data.report.read == 9


# ---- MovieLens --------------------------------------------------------------------------------------------------------


def test_movies_of_each_release(tmp_path):
    flags = ["0"] * 19
    flags[5] = flags[16] = "1"
    old = ["1", "Été à Paris (1996)", "01-Jan-1996", "", "http://x/?a|b".replace("|", "%7C"), *flags]
    made = {
        "100k": [("u.data", "1\t1\t5\t9"), ("u.item", "|".join(old))],
        "1m": [("ratings.dat", "1::1::5::9"), ("movies.dat", "1::Été à Paris (1996)::Comedy|Thriller")],
        "latest": [
            ("ratings.csv", "userId,movieId,rating,timestamp\n1,1,4.5,9"),
            (
                "movies.csv",
                'movieId,title,genres\n1,"Été à Paris (1996)",Comedy|Thriller\n2,"Lost, ""Found""",(no genres listed)',
            ),
        ],
    }
    for release, pair in made.items():
        folder = tmp_path / release
        folder.mkdir()
        for name, text in pair:
            (folder / name).write_bytes(text.encode("utf-8" if release == "latest" else "latin-1"))
        data = movielens.read(folder)
        assert attributes(data) == {
            "1": {"title": "Été à Paris (1996)", "year": 1996, "genres": ["Comedy", "Thriller"]}
        }
        assert data.events["time"].to_list() == [9000]
    with pytest.raises(ValueError, match="Keep the name it came by"):
        movielens.read(lines(tmp_path / "mine.csv", "userId,movieId,rating,timestamp"))


def test_movies_without_year_or_genre(tmp_path):
    lines(tmp_path / "ratings.csv", "userId,movieId,rating,timestamp", "1,2,4.5,9", "1,3,4.5,10")
    lines(tmp_path / "movies.csv", "movieId,title,genres", '2,"Lost, ""Found""",(no genres listed)', "3,Late (19,")
    got = attributes(movielens.read(tmp_path))
    assert got == {
        "2": {"title": 'Lost, "Found"', "year": None, "genres": []},
        "3": {"title": "Late (19", "year": None, "genres": []},
    }


# ---- playlists --------------------------------------------------------------------------------------------------------


def track(uri, pos, **more):
    return {"pos": pos, "track_uri": uri, "track_name": uri.upper(), "artist_uri": "ar", "artist_name": "Ann",
            "album_uri": "al", "album_name": "Al", "duration_ms": 1000} | more  # fmt: skip


def mpd_slice(folder, first, *playlists):
    made = [{"pid": first + i, "name": "x", "tracks": tracks} for i, tracks in enumerate(playlists)]
    (folder / f"mpd.slice.{first}-{first + 999}.json").write_text(json.dumps({"info": {}, "playlists": made}, indent=1))


def test_slices(tmp_path):
    mpd_slice(tmp_path, 0, [track("b", 1), track("a", 0), track("b", 2), track("b", 2)], [])
    mpd_slice(tmp_path, 1000, [track("a", 0, track_name="other"), track("c", 1, duration_ms=None)])
    data = playlists.read(tmp_path)
    assert data.events.select("user", "item", "time").rows() == [
        ("0", "a", 0),
        ("0", "b", 1),
        ("0", "b", 2),
        ("1000", "a", 0),
        ("1000", "c", 1),
    ]
    assert attributes(data)["a"] == {
        "title": "A",
        "artist": "ar",
        "artist_name": "Ann",
        "album": "al",
        "duration_ms": 1000,
    }
    assert attributes(data)["c"]["duration_ms"] is None
    assert data.report.duplicates == 1
    assert not data.absolute
    split = leave_last(data)
    assert split.items.attributes["title"].tolist() == ["A", "C"]
    assert not split.train.extra


def test_a_track_is_described_by_train_alone(tmp_path):
    def made(held_out):
        mpd_slice(
            tmp_path, 0, [track("b", 3, **held_out), track("a", 0), track("c", 1), track("d", 2)], [track("b", 0)]
        )
        return leave_last(playlists.read(tmp_path)).items

    plain, other = made({}), made({"track_name": "no such name", "duration_ms": 9})
    assert plain.id.tolist() == other.id.tolist() == ["a", "b", "c"]
    for name, values in plain.attributes.items():
        assert values.tolist() == other.attributes[name].tolist()


def test_slices_with_faults(tmp_path):
    bad = [
        track("x", -1),
        track("x", "one"),
        track("x", None),
        track("", 3),
        "x",
        {"pos": 4},
        track("x", 5, duration_ms="long"),
    ]
    mpd_slice(tmp_path, 0, [track("a", 0)], None, bad)
    data = playlists.read(tmp_path, most_bad=0.95)
    assert data.events.select("user", "item", "time").rows() == [("0", "a", 0)]
    assert data.report.skipped == {
        "a playlist without tracks": 1, "duration_ms is not a whole number": 1, "negative time": 1, "no item": 2,
        "no time": 1, "not a JSON object": 1, "time is not a whole number": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"tracks in playlists may be malformed, got 8 of 9.*line [23] of"):
        playlists.read(tmp_path)
    for broken in ('{"playlists": [', "[]", '{"playlists": 3}', '{"info": 1}', "[" * 100_000):
        (tmp_path / "mpd.slice.0-999.json").write_text(broken)
        with pytest.raises(ValueError, match="must be a JSON object with a list of `playlists`"):
            playlists.read(tmp_path)


def test_tracks_of_a_plain_table(tmp_path):
    lines(tmp_path / "playlists.csv", "playlist_id,track_id,pos", "1,a,-1", "1,b,0", "1,c,0")
    lines(tmp_path / "tracks.csv", "track_id,album_id,artist_id,duration_sec,mood", "a,al,ar,167,", "b,,,2.5,calm")
    data = playlists.read(tmp_path)
    assert data.events["item"].to_list() == ["a", "b", "c"]
    nothing = {"album": None, "artist": None, "duration_ms": None, "mood": None}
    assert attributes(data) == {
        "a": {"album": "al", "artist": "ar", "duration_ms": 167_000, "mood": None},
        "b": nothing | {"duration_ms": 2500, "mood": "calm"},
        "c": nothing,
    }


# ---- KuaiRand ---------------------------------------------------------------------------------------------------------

LOG = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,tab,play_time_ms,duration_ms"


def test_raw_logs_and_videos(tmp_path):
    lines(tmp_path / "log_standard_4_08_to_4_21_pure.csv", LOG, "1,10,20220408,900,1649379600000,1,0,2,500,")
    lines(
        tmp_path / "log_standard_4_22_to_5_08_pure.csv", LOG + ",is_rand", "1,11,20220501,0,1651334400000,0,0,1,0,9,0"
    )
    lines(tmp_path / "log_random_4_22_to_5_08_pure.csv", LOG + ",is_rand", "1,12,20220502,0,1651334400001,0,0,1,0,9,1")
    lines(
        tmp_path / "video_features_basic_pure.csv",
        "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,music_type,tag",
        "10,7,NORMAL,2022-04-01,LongImport,1,87433.0,9.0,39",
        "11,8,AD,20220402,ShortImport,1,,,20,",
    )
    with pytest.raises(ValueError, match="lines of videos may be malformed"):
        kuairand.read(tmp_path)
    lines(
        tmp_path / "video_features_basic_pure.csv",
        "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,music_type,tag",
        "10,7,NORMAL,2022-04-01,LongImport,1,87433.0,9.0,39",
        '11,8,AD,20220402,ShortImport,1,,,"20,43"',
    )
    data = kuairand.read(tmp_path)
    assert data.events.select("item", "tab", "is_click", "duration_ms", "is_rand").rows() == [
        ("10", 2, 1, None, None),
        ("11", 1, 0, 9, 0),
    ]
    assert len(kuairand.read(tmp_path, random=True).events) == 3
    assert attributes(data) == {
        "10": {"author": "7", "video_type": "NORMAL", "upload_date": "2022-04-01", "upload_type": "LongImport",
               "music_type": 9, "video_duration": 87433.0, "tags": ["39"]},
        "11": {"author": "8", "video_type": "AD", "upload_date": "2022-04-02", "upload_type": "ShortImport",
               "music_type": None, "video_duration": None, "tags": ["20", "43"]},
    }  # fmt: skip
    split = at_time(data, at=1651334400000, validation_at=1651334400000)
    assert split.train.extra["tab"].tolist() == [2]


def test_packed_parquet(tmp_path):
    shown = {"user_id": [1, 1, 2, None], "video_id": [10, 11, 10, 10], "time_ms": [5, 3, -1, 4], "tab": [1, 0, 1, 1]}
    frame = pl.DataFrame(shown | {"split": ["train", "test", "train", "train"]})
    frame.cast({"user_id": pl.Int32, "split": pl.Categorical}).write_parquet(tmp_path / "impressions.parquet")
    video = {"video_id": [10], "author_id": [7], "upload_date": [20220410], "music_type": [9.0], "tag": ["20,43"]}
    pl.DataFrame(video).write_parquet(tmp_path / "videos.parquet")
    history = {"user_id": [1], "last_time_ms": [2], "watch_seq": [[10, 9]], "like_seq": [[]], "long_watch_seq": [[9]]}
    schema = dict.fromkeys(("watch_seq", "like_seq", "long_watch_seq"), pl.List(pl.Int32))
    pl.DataFrame(history, schema_overrides=schema).write_parquet(tmp_path / "histories.parquet")
    data = kuairand.read(tmp_path, most_bad=0.5)
    assert data.events.rows() == [("1", "11", 3, 0, "test"), ("1", "10", 5, 1, "train")]
    assert data.report.skipped == {"negative time": 1, "no user": 1}
    about = attributes(data)["10"]
    assert (about["author"], about["upload_date"], about["music_type"], about["tags"]) == (
        "7",
        "2022-04-10",
        9,
        ["20", "43"],
    )
    assert kuairand.histories(tmp_path).rows() == [("1", ["10", "9"], [], ["9"], 2)]
    with pytest.raises(
        ValueError, match=r"of the lines may be malformed, got 2 of 4.*line 3 of .*impressions\.parquet"
    ):
        kuairand.read(tmp_path)


def test_the_log_of_a_ranker_begins_with_what_was_watched(tmp_path):
    shown = {"user_id": [1, 1], "video_id": [10, 11], "time_ms": [5, 9], "tab": [1, 0], "is_click": [1, 0]}
    pl.DataFrame(shown | {"long_view": [0, 0]}).write_parquet(tmp_path / "impressions.parquet")
    videos = {"video_id": [9, 10, 12], "author_id": [3, 7, 8], "tag": ["5", "20,4", "1"]}
    pl.DataFrame(videos).write_parquet(tmp_path / "videos.parquet")
    history = {"user_id": [1], "last_time_ms": [2], "watch_seq": [[10, 9]], "like_seq": [[]], "long_watch_seq": [[9]]}
    schema = dict.fromkeys(("watch_seq", "like_seq", "long_watch_seq"), pl.List(pl.Int32))
    pl.DataFrame(history, schema_overrides=schema).write_parquet(tmp_path / "histories.parquet")
    data = kuairand.read(tmp_path, actions=True)
    assert data.events.select("item", "time", "action", "is_click", "surface").rows() == [
        ("10", 2, 1, -1, 0),
        ("9", 2, 2, -1, 0),
        ("10", 5, 5, 1, 2),
        ("11", 9, 4, 0, 1),
    ]
    # What was only watched before is described as well as what was shown; what nobody met is no item.
    assert data.items.select("item", "author", "tag", "tags").rows() == [
        ("10", "7", "20", "20,4"),
        ("11", None, None, None),
        ("9", "3", "5", "5"),
    ]
    (tmp_path / "videos.parquet").unlink()
    assert kuairand.read(tmp_path, actions=True).items.columns == ["item", "tags", "tag"]
    pl.DataFrame(shown).drop("is_click").write_parquet(tmp_path / "impressions.parquet")
    with pytest.raises(ValueError, match=r"needs the column 'is_click', .* Leave out `actions`"):
        kuairand.read(tmp_path, actions=True)


# ---- any table --------------------------------------------------------------------------------------------------------


def test_a_table_in_each_format_is_the_same(tmp_path):
    frame = pl.DataFrame(
        {
            "who": ["b", "a", "a"],
            "what": [1, 2, 1],
            "when": [5, 9, 3],
            "price": [1.5, 2.0, 1.5],
            "kind": ["x", None, "x"],
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_ipc(tmp_path / "t.arrow")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    named = {"user": "who", "item": "what", "time": "when", "attributes": ["kind"]}
    made = [table.read(tmp_path / f"t.{s}", **named) for s in ("csv", "csv.gz", "parquet", "arrow")]
    for data in made:
        assert data.events.drop("kind").rows() == [("a", "1", 3000, 1.5), ("a", "2", 9000, 2.0), ("b", "1", 5000, 1.5)]
        assert attributes(data) == {"1": {"kind": "x"}, "2": {"kind": None}}
        assert data.name == "t"


def test_dates_units_and_no_time(tmp_path):
    dates = lines(
        tmp_path / "d.csv", "user,item,time", "a,x,2024-05-01", "a,y,2024-05-01T00:00:01Z", "a,z,2024-04-30 23:59:59.5"
    )
    first = 1714521600000
    away = lines(
        tmp_path / "o.csv",
        "user,item,time",
        "a,x,2024-05-01 10:00:00+02:00",
        "a,y,2024-05-01T00:00:00.5-08:00",
        "a,z,2024-05-01",
    )
    assert table.read(away).events.select("item", "time").rows() == [
        ("z", first),
        ("x", first + 8 * 3_600_000),
        ("y", first + 8 * 3_600_000 + 500),
    ]
    assert table.read(dates).events.select("item", "time").rows() == [
        ("z", first - 500),
        ("x", first),
        ("y", first + 1000),
    ]
    frame = pl.read_csv(dates).with_columns(pl.col("time").str.slice(0, 10).str.to_date())
    frame.write_parquet(tmp_path / "d.parquet")
    assert table.read(tmp_path / "d.parquet").events["time"].to_list() == [first - 86_400_000, first, first]
    moments = frame.with_columns(pl.col("time").cast(pl.Datetime("us")).dt.replace_time_zone("Asia/Shanghai"))
    moments.write_parquet(tmp_path / "z.parquet")
    eight = 8 * 3_600_000
    wanted = [first - 86_400_000 - eight, first - eight, first - eight]
    assert table.read(tmp_path / "z.parquet").events["time"].to_list() == wanted
    plain = lines(tmp_path / "p.csv", "user,item,time", "a,x,7")
    assert table.read(plain, unit="ms").events["time"].to_list() == [7]
    with pytest.raises(ValueError, match="`unit` must be 's' or 'ms', got 'min'"):
        table.read(plain, unit="min")
    untimed = lines(tmp_path / "u.csv", "user,item", "a,y", "a,x", "a,x")
    data = table.read(untimed, time=None)
    assert data.events["item"].to_list() == ["y", "x", "x"]
    assert not data.absolute
    bad = lines(tmp_path / "b.csv", "user,item,time", "a,x,2024-05-01", "a,y,2024-13-01")
    assert table.read(bad, most_bad=0.5).report.skipped == {"time is not a whole number": 1}


def test_quoted_fields_run_over_lines(tmp_path, monkeypatch):
    text = 'user,item,time,note\na,"x, ""y""",1,"two\nlines"\na,z,2,"never closed\n' + "a,z,3,\n" * 3
    (tmp_path / "q.csv").write_text(text)
    for batch in (1 << 20, 8):
        monkeypatch.setattr("spdd.data.lines.BATCH", batch)
        data = table.read(tmp_path / "q.csv", most_bad=0.5)
        assert data.events["item"].to_list() == ['x, "y"', "z"]
        assert data.events["note"].to_list() == ["two\nlines", None]
        assert data.report.skipped == {"broken quotes": 1}
        assert (data.report.read, data.report.duplicates) == (5, 2)


def test_labels_that_look_like_numbers_stay_apart(tmp_path):
    lines(tmp_path / "e.csv", "user,item,time", "a,x,1", "a,y,2", "b,z,3")
    columns = "item,brand,code,size,price,big,plus"
    rows = ("x,007,1,5,1.50,12345678901234567890,+1", "y,7,2,-3,2,2,2", "z,8,3,,.5,3,3")
    lines(tmp_path / "i.csv", columns, *rows)
    found = table.read(tmp_path / "e.csv", items=tmp_path / "i.csv").items.sort("item")
    assert found["brand"].to_list() == ["007", "7", "8"]
    assert found["big"].to_list() == ["12345678901234567890", "2", "3"]
    assert found["code"].to_list() == [1, 2, 3]
    assert found["code"].dtype == found["size"].dtype == pl.Int64
    assert found["size"].to_list() == [5, -3, None]
    assert found["price"].to_list() == [1.5, 2.0, 0.5]
    assert found["plus"].to_list() == [1.0, 2.0, 3.0]


def test_items_of_a_second_table(tmp_path):
    lines(tmp_path / "e.csv", "user,item,time", "a,007,1", "a,b,2")
    lines(tmp_path / "i.csv", "item,year,brand", "007,1999,x", "c,2000,y")
    data = table.read(tmp_path / "e.csv", items=tmp_path / "i.csv")
    assert attributes(data) == {"007": {"year": 1999, "brand": "x"}, "b": {"year": None, "brand": None}}
    lines(tmp_path / "e.csv", "user,item,time,year", "a,007,1,9")
    with pytest.raises(ValueError, match="'year' is an attribute and a column of"):
        table.read(tmp_path / "e.csv", items=tmp_path / "i.csv", attributes=["year"])


@pytest.mark.parametrize(
    ("name", "frame", "options", "complaint"),
    [
        ("t.csv", {"u": ["a"], "item": ["x"], "time": [1]}, {}, "column 'user', and has u, item, time. Rename them, or name them once"),
        ("t.parquet", {"user": [1.5], "item": ["x"], "time": [1]}, {}, "'user' of .* must hold names or whole numbers, got Float64"),
        ("t.parquet", {"user": [[1]], "item": ["x"], "time": [1]}, {}, "must hold names or whole numbers, got List"),
        ("t.parquet", {"user": ["a"], "item": ["x"], "time": [True]}, {}, "must hold times, got Boolean"),
        ("t.csv", {"user": ["a"], "item": ["x"], "time": [1]}, {"attributes": ["item"]}, "'item' is an attribute and"),
        ("t.csv", {"user": ["a"], "who": ["a"], "item": ["x"], "time": [1]}, {"user": "who"}, "a column 'user' that is not"),
    ],
)  # fmt: skip
def test_wrong_tables(tmp_path, name, frame, options, complaint):
    path = tmp_path / name
    (pl.DataFrame(frame).write_csv if name.endswith("csv") else pl.DataFrame(frame).write_parquet)(path)
    with pytest.raises(ValueError, match=complaint):
        table.read(path, **options)


def test_broken_files_and_unknown_formats(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "t.arrow").write_bytes(b"ARROW1")
    for name in ("t.parquet", "t.arrow"):
        with pytest.raises(ValueError, match="cannot be read"):
            table.read(tmp_path / name)
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(ValueError, match="must show in its suffix"):
        table.read(tmp_path / "t.xlsx")


# ---- the public sets --------------------------------------------------------------------------------------------------


@pytest.mark.real_data
def test_amazon_sports(shared_data):
    data = amazon.read(shared_data / "amazon-sports")
    assert (data.users, len(data.items), len(data.events)) == (35_598, 18_357, 296_337)
    assert not data.report.skipped
    of_item = data.items.select("item", wanted=pl.col("categories").list.contains("Camping & Hiking"))
    assert of_item["wanted"].sum() == 2_979
    share = data.events.join(of_item, on="item")["wanted"].mean()
    assert round(100 * share, 1) == 16.5
    split = leave_last(data)
    assert len(split.test) == len(split.validation) == 35_598
    assert len(split.train.item) == 296_337 - 2 * 35_598


@pytest.mark.real_data
def test_polimi_playlists(shared_data):
    data = playlists.read(shared_data / "polimi-playlists")
    assert (data.users, len(data.items), len(data.events)) == (5_000, 13_536, 115_553)
    assert data.items["artist"].null_count() == 0


@pytest.mark.real_data
def test_kuairand(shared_data):
    data = kuairand.read(shared_data / "kuairand")
    assert data.report.read == 228_329
    assert not data.report.skipped
    split = at_time(data, at=1_651_334_400_000)
    days = data.events.filter(pl.col("time") >= 1_651_334_400_000)["split"]
    assert (days == "test").all()
    assert len(split.test.item) == len(days)
    assert len(kuairand.histories(shared_data / "kuairand")) == 26_469
