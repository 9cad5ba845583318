"""MovieLens as GroupLens gives it: 100K, 1M, and the sets whose files are CSV (latest, 20M, 25M, 32M).

Which one a folder holds is told by its files. One event is one rating. A movie's `title` keeps its year as printed,
`year` is that number, `genres` a list.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import polars as pl

from .interactions import Interactions
from .lines import Progress, Tally, files, need
from .rows import columns_of, interactions, sift, split_rows

# The order of the flags in u.item.
GENRES = (
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)


class Form(NamedTuple):
    """How one release writes things down. columns: None where the first line names them"""

    ratings: str
    movies: str
    separator: str
    movie_separator: str
    columns: tuple[str, ...] | None
    movie_columns: tuple[str, ...] | None
    encoding: str
    genres: Callable[[pl.DataFrame], pl.Expr]


def _flagged(batch: pl.DataFrame) -> pl.Expr:
    """Names of the genres whose flag is 1."""
    return pl.concat_list(pl.when(pl.col(g) == "1").then(pl.lit(g)) for g in GENRES).list.drop_nulls()


def _named(batch: pl.DataFrame) -> pl.Expr:
    none = pl.col("genres").is_in(["(no genres listed)", ""])
    return pl.when(~none).then(pl.col("genres").str.split("|")).otherwise(pl.lit([], pl.List(pl.String)))


RATING = ("userId", "movieId", "rating", "timestamp")
MOVIE = ("movieId", "title", "genres")
FORMS = (
    Form(
        "u.data",
        "u.item",
        "\t",
        "|",
        RATING,
        ("movieId", "title", "released", "video", "url", *GENRES),
        "latin-1",
        _flagged,
    ),
    Form("ratings.dat", "movies.dat", "::", "::", RATING, MOVIE, "latin-1", _named),
    Form("ratings.csv", "movies.csv", ",", ",", None, None, "utf-8", _named),
)


def read(
    path: str | Path, *, name: str = "movielens", most_bad: float = 0.01, progress: Progress | None = None
) -> Interactions:
    """Ratings as events (user, item, time, rating), and of every movie its title, year and genres.

    path:     the folder of u.data, ratings.dat or ratings.csv, with the file of movies beside it
    most_bad: the largest share of lines that may be malformed
    """
    names = tuple(f.ratings for f in FORMS)
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    ratings = need(files(path, names, "ratings"), path, names, "ratings")[0]
    form = next((f for f in FORMS if ratings.name.removesuffix(".gz") == f.ratings), None)
    if form is None:
        raise ValueError(
            f"ratings of MovieLens must be in {', '.join(names)}, got '{ratings}'. Keep the name it came by."
        )
    movies = files(folder, (form.movies,), "movies")
    tally, of_items = Tally(most_bad), Tally(most_bad, "lines of movies")
    events, items = [], []
    given = {"userId": "user", "movieId": "item", "timestamp": "time"}
    quotes = form.columns is None
    for batch in split_rows(
        ratings, tally, separator=form.separator, columns=form.columns, quotes=quotes, progress=progress
    ):
        columns_of(batch, RATING, ratings)
        kinds = {"user": "id", "item": "id", "time": "time", "rating": "number"}
        events.append(sift(batch.rename(given), kinds, ratings, tally, scale=1000))
    for file in movies[:1]:
        for batch in split_rows(
            file, of_items, separator=form.movie_separator, columns=form.movie_columns, quotes=quotes,
            encoding=form.encoding, progress=progress,
        ):  # fmt: skip
            columns_of(batch, MOVIE[:2], file)
            batch = batch.with_columns(
                form.genres(batch).alias("genres"), pl.col("title").str.extract(r"\((\d{4})\)\s*$").alias("year")
            ).rename({"movieId": "item"})
            items.append(
                sift(batch, {"item": "id", "title": "text", "year": "whole", "genres": "text"}, file, of_items)
            )
    return interactions(name, events, items, tally, of_items, path=path)
