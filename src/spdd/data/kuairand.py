"""KuaiRand: what was shown to users of a video feed, and what they did with it.

Raw CSVs (Pure, 1K or 27K) and the packed Parquet. One event is one impression; what the user did with it, and the
surface it was shown on (`tab`), are columns of events. Times are milliseconds; days of the publisher are days in
China (UTC+8), so that the standard test part, from 1 May 2022 on, begins at 1651334400000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from .interactions import Interactions
from .lines import Progress, Tally, files, need
from .rows import LINE, columns_of, interactions, sift, split_rows
from .shown import ACTION, LABELS

LOGS = ("log_standard_*.csv", "log_random*.csv")
PACKED = ("impressions.parquet",)
VIDEOS = ("video_features_basic_*.csv", "videos.parquet")
ACTIONS = ("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view", "is_profile_enter")
WHOLE = ("tab", *ACTIONS, "play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_rand")
KINDS = {"user": "id", "item": "id", "time": "time"}
ABOUT = {"item": "id", "author": "text", "video_type": "text", "upload_date": "text", "upload_type": "text",
         "music_type": "whole", "video_duration": "number", "tags": "text"}  # fmt: skip
DESCRIBED = {"item": pl.String, "tags": pl.List(pl.String)}  # where no file tells of videos


def read(
    path: str | Path,
    *,
    random: bool = False,
    actions: bool = False,
    name: str = "kuairand",
    most_bad: float = 0.01,
    progress: Progress | None = None,
) -> Interactions:
    """Impressions as events (user, item, time, tab, is_click, ...), and of every video its author, upload date, tags.

    upload_date is text like 2022-04-10, as it sorts and compares; tags is a list of text.

    path:     the folder of log_*.csv and video_features_basic_*.csv, or of impressions.parquet and videos.parquet;
              or one log
    random:   whether logs of videos shown at random are read too; they are no sequence of what a recommender did
    actions:  instead, the log a ranker of shelves learns from: what was watched before goes first, where the packed form
              tells it, and events have the columns action (see `shown`), surface (0 unknown), and is_click and long_view, -1
              where nothing was shown; items have their first tag besides, and their tags as one text
    most_bad: the largest share of rows that may be malformed
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    wanted = (*LOGS, *PACKED) if random or Path(path).is_file() else (LOGS[0], *PACKED)
    logs = need(files(path, wanted, "impressions"), path, wanted, "impressions")
    tally, of_items = Tally(most_bad), Tally(most_bad, "lines of videos")
    events, items = [], []
    given = {"user_id": "user", "video_id": "item", "time_ms": "time"}
    for log in logs:
        for batch in _batches(log, tally, progress):
            columns_of(batch, list(given), log)
            batch = batch.rename(given)
            kinds = KINDS | {c: "whole" for c in WHOLE if c in batch.columns}
            if "split" in batch.columns:
                kinds["split"] = "text"
            events.append(sift(batch, kinds, log, tally))
    for videos in files(folder, VIDEOS, "videos"):
        for batch in _batches(videos, of_items, progress):
            columns_of(batch, ["video_id"], videos)
            items.append(_described(batch, videos, of_items))
    data = interactions(name, _alike(events), items, tally, of_items, path=path)
    if not actions:
        return data
    before = histories(folder) if (folder / "histories.parquet").is_file() else None
    return _log(data, before, pl.concat(items) if items else pl.DataFrame(schema=DESCRIBED))


def _log(data: Interactions, before: pl.DataFrame | None, videos: pl.DataFrame) -> Interactions:
    """See `read`, actions. videos: all that are described, shown or watched before"""
    missing = [c for c in (*LABELS, "tab") if c not in data.events.columns]
    if missing:
        raise ValueError(
            f"the log a ranker of shelves learns from needs the column '{missing[0]}', and these impressions do not have it. "
            "Leave out `actions`, or use logs that tell it."
        )
    opened = pl.when(pl.col("long_view") > 0).then(ACTION.index("viewed long"))
    opened = opened.otherwise(ACTION.index("passed by") + (pl.col("is_click") > 0))
    events = data.events.select("user", "item", "time", *LABELS, "tab", opened.cast(pl.Int8).alias("action"))
    if before is not None:
        watched = before.explode("watched").rename({"watched": "item"}).drop_nulls("item")
        kind = pl.when(pl.col("item").is_in(pl.col("liked"))).then(ACTION.index("liked"))
        kind = kind.when(pl.col("item").is_in(pl.col("watched_long"))).then(ACTION.index("watched long"))
        watched = watched.select(
            "user", "item", "time", kind.otherwise(ACTION.index("watched")).cast(pl.Int8).alias("action")
        )
        events = pl.concat([watched, events], how="diagonal").sort("user", "time", maintain_order=True)
    events = events.with_columns(
        *(pl.col(label).fill_null(-1).cast(pl.Int8) for label in LABELS),
        (pl.col("tab").fill_null(-1) + 1).cast(pl.Int8).alias("surface"),
    ).drop("tab")
    first = pl.col("tags").list.first().alias("tag")
    items = events.select("item").unique().sort("item")
    items = items.join(videos.unique("item", keep="first"), on="item", how="left", maintain_order="left")
    items = items.with_columns(first, pl.col("tags").list.sort().list.join(","))
    return replace(data, events=events, items=items)


def _batches(file: Path, tally: Tally, progress: Progress | None) -> Iterator[pl.DataFrame]:
    if ".parquet" not in file.suffixes:
        yield from split_rows(file, tally, progress=progress)
        return
    from .table import frames

    yield from frames(file, tally, progress)


def _described(batch: pl.DataFrame, file: Path, tally: Tally) -> pl.DataFrame:
    ours = {"video_id": "item", "author_id": "author", "upload_dt": "upload_date", "tag": "tags"}
    batch = batch.rename({old: new for old, new in ours.items() if old in batch.columns})
    batch = batch.with_columns(pl.lit(None, pl.String).alias(c) for c in ABOUT if c not in batch.columns)
    batch = batch.with_columns(pl.col(c).cast(pl.String) for c, kind in ABOUT.items() if kind == "text")
    day = pl.col("upload_date").str.replace(r"^(\d{4})(\d\d)(\d\d)$", "${1}-${2}-${3}")
    tags = (
        pl.col("tags").str.strip_chars("\"[]' ").str.split(",").list.eval(pl.element().str.strip_chars()).fill_null([])
    )
    tags = tags.list.eval(pl.element().filter(pl.element() != ""))
    rows = sift(batch.select(LINE, *ABOUT).with_columns(day), ABOUT, file, tally)
    return rows.with_columns(tags)


def _alike(events: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """The same columns everywhere: older logs lack some."""
    columns = list(dict.fromkeys(c for e in events for c in e.columns))
    kinds = {c: e.schema[c] for e in events for c in e.columns}
    return [
        e.with_columns(pl.lit(None, kinds[c]).alias(c) for c in columns if c not in e.columns).select(columns)
        for e in events
    ]


def histories(path: str | Path) -> pl.DataFrame:
    """The packed form's histories.parquet: per user, item ids that were watched, liked and watched long before.

    user, watched, liked, watched_long (lists of ids, oldest first), time (of the last, milliseconds).
    """
    path = Path(path)
    file = path / "histories.parquet" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"'{path}' must hold histories.parquet, and does not. Only the packed form has it.")
    lists = {"watch_seq": "watched", "like_seq": "liked", "long_watch_seq": "watched_long"}
    return pl.read_parquet(file).select(
        pl.col("user_id").cast(pl.String).alias("user"),
        *(pl.col(old).cast(pl.List(pl.String)).alias(new) for old, new in lists.items()),
        pl.col("last_time_ms").cast(pl.Int64).alias("time"),
    )
