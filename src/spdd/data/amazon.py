"""Amazon reviews: the raw files of 2014, 2018 and 2023 with their metadata, and a packed form of Sports 2014.

One event is one review. All three raw sets are a JSON object per line, and differ in names, so each line is read by
the names it has: 2014 and 2018 say reviewerID, asin, unixReviewTime (seconds) and overall; 2023 says user_id,
parent_asin, timestamp (milliseconds) and rating, also as CSV. Metadata of 2014 are Python dicts, not JSON.
Review texts are left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from .interactions import Interactions
from .lines import Progress, Tally, files, need
from .rows import LINE, SCALE, columns_of, interactions, json_rows, name_of, number_of, sift, split_rows, text_of

REVIEWS = ("*.json", "*.jsonl", "*.csv")
META = ("meta_*.json", "meta_*.jsonl")
PACKED = ("sequences.tsv",)
HEADERLESS = (
    "CSV files of 2014 and 2018 have none, and count seconds: write a first line that names user, item, rating and time, in "
    "the file's order, and read them with `table`."
)
KINDS = {"user": "id", "item": "id", "time": "time", "rating": "number"}
ABOUT = {"item": "id", "title": "text", "categories": "text", "brand": "text"}


def read(
    path: str | Path,
    *,
    meta: str | Path | None = None,
    name: str = "amazon",
    most_bad: float = 0.01,
    progress: Progress | None = None,
) -> Interactions:
    """Reviews as events (user, item, time, rating), and of every item its title, categories and brand.

    path:     the folder of the files as downloaded, gzipped or not; or one file of reviews
    meta:     one file of metadata, where it lies elsewhere
    most_bad: the largest share of lines that may be malformed
    """
    if packed := files(path, PACKED, "reviews") if Path(path).is_dir() else []:
        return _packed(packed[0], name, most_bad, progress)
    found = [f for f in files(path, REVIEWS, "reviews") if Path(path).is_file() or not f.name.startswith("meta_")]
    reviews = _apart(need(found, path, REVIEWS, "reviews"))
    described = files(meta, META, "metadata") if meta else files(path, META, "metadata") if Path(path).is_dir() else []
    tally, of_items = Tally(most_bad), Tally(most_bad, "lines of metadata")
    events = [
        sift(batch, KINDS, file, tally)
        for file in reviews
        for batch in (_table(file, tally, progress) if ".csv" in file.suffixes else _objects(file, tally, progress))
    ]
    known = pl.concat(e.select("item").unique() for e in events).unique() if events else None
    items = [
        sift(batch, ABOUT, file, of_items).join(known, on="item", how="semi", maintain_order="left")
        for file in described
        if known is not None
        for batch in _descriptions(file, of_items, progress)
    ]
    return interactions(name, events, items, tally, of_items, path=path)


def _apart(reviews: list[Path]) -> list[Path]:
    """Refuse a folder that holds the same reviews twice: whole and filtered, or in two formats."""
    by_stem: dict[str, Path] = {}
    for file in reviews:
        stem = re.sub(r"^reviews_|(_5)?(\.(json|jsonl|csv))?(\.gz)?$", "", file.name)
        if stem in by_stem:
            raise ValueError(
                f"a folder must hold each set of reviews once, and '{file.parent}' has '{by_stem[stem].name}' and "
                f"'{file.name}'. Give the path of one file, and `meta`."
            )
        by_stem[stem] = file
    return reviews


def _objects(file: Path, tally: Tally, progress: Progress | None) -> Iterator[pl.DataFrame]:
    schema = {"user": pl.String, "item": pl.String, "time": pl.String, "rating": pl.String, SCALE: pl.Int64}
    return json_rows(file, _review, schema, tally, progress=progress)


def _review(row: dict) -> tuple:
    time = "timestamp" if "timestamp" in row else "sort_timestamp" if "sort_timestamp" in row else "unixReviewTime"
    return (
        name_of(row.get("user_id", row.get("reviewerID"))),
        name_of(row.get("parent_asin", row.get("asin"))),
        number_of(row.get(time)),
        number_of(row.get("rating", row.get("overall"))),
        1000 if time == "unixReviewTime" else 1,
    )


def _table(file: Path, tally: Tally, progress: Progress | None) -> Iterator[pl.DataFrame]:
    given = {"user_id": "user", "parent_asin": "item", "timestamp": "time", "rating": "rating"}
    for batch in split_rows(file, tally, progress=progress):
        columns_of(batch, list(given), file, HEADERLESS)
        yield batch.rename(given)


def _descriptions(file: Path, tally: Tally, progress: Progress | None) -> Iterator[pl.DataFrame]:
    schema = {"item": pl.String, "title": pl.String, "categories": pl.List(pl.String), "brand": pl.String}
    return json_rows(file, _description, schema, tally, literals=True, progress=progress)


def _description(row: dict) -> tuple:
    return (
        name_of(row.get("parent_asin", row.get("asin"))),
        text_of(row.get("title")),
        list(_flat(row.get("categories", row.get("category")))),
        text_of(row.get("brand", row.get("store"))),
    )


def _flat(categories) -> list[str]:
    """Names once each, in order, out of a list or a list of paths."""
    if not isinstance(categories, list | tuple):
        return []
    parts = itertools.chain.from_iterable(c if isinstance(c, list | tuple) else [c] for c in categories)
    return list(dict.fromkeys(p.strip() for p in parts if isinstance(p, str) and p.strip()))


# ---- the packed form ------------------------------------------------------------------------------------------------


def _packed(file: Path, name: str, most_bad: float, progress: Progress | None) -> Interactions:
    """A line per user: item numbers, and the seconds between one event and the next. Times count from the first."""
    tally, of_items = Tally(most_bad), Tally(most_bad, "lines of items")
    folder = file.parent
    described = need(files(folder, ("items.tsv",), "items"), folder, ("items.tsv",), "items")[0]
    kinds = {"item_id": "id", "item": "id", "brand": "text", "categories": "text", "text": "text"}
    items = []
    for batch in split_rows(described, of_items, separator="\t", quotes=False, progress=progress):
        columns_of(batch, ["item_id", "asin", "brand", "categories", "idgenrec_text_id"], described)
        batch = sift(batch.rename({"asin": "item", "idgenrec_text_id": "text"}), kinds, described, of_items)
        items.append(batch.with_columns(pl.col("categories").str.split("|").fill_null([])))
    if not items:
        raise ValueError(f"'{described}' must describe the items of '{file.name}', and is empty. Fetch it again.")
    ids = pl.concat(items).select(pl.col("item_id").alias("number"), "item").unique("number", keep="first")
    events = []
    for batch in split_rows(file, tally, separator="\t", quotes=False, progress=progress):
        columns_of(batch, ["user_id", "item_ids", "delta_seconds"], file)
        events.append(_unpacked(batch, ids, file, tally))
    return interactions(name, events, [i.drop("item_id") for i in items], tally, of_items, path=folder, absolute=False)


def _unpacked(batch: pl.DataFrame, ids: pl.DataFrame, file: Path, tally: Tally) -> pl.DataFrame:
    rows = batch.select(
        LINE,
        pl.col("user_id").alias("user"),
        pl.col("item_ids").str.split(" ").alias("number"),
        pl.col("delta_seconds").str.split(" ").alias("time"),
    )
    unequal = pl.col("number").list.len() != pl.col("time").list.len()
    for (line,) in rows.filter(unequal).select(LINE).iter_rows():
        tally.skip(file, line, "not as many times as items")
    tally.read += sum(rows.filter(~unequal)["number"].list.len()) - len(rows.filter(~unequal))  # rows are events now
    rows = rows.filter(~unequal).explode("number", "time").join(ids, on="number", how="left", maintain_order="left")
    rows = sift(rows, {"user": "id", "item": "id", "time": "time"}, file, tally, scale=1000)
    return rows.with_columns(pl.col("time").cum_sum().over("user"))
