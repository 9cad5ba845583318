"""Playlists: slices of the Million Playlist Dataset, and plain CSV tables.

A playlist is a user, and a track's position in it is its time: positions say an order, not a moment, so such data can
be split by `leave_last` only. A track may stand in a playlist more than once, at different positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from .interactions import Interactions
from .lines import Progress, Tally, files, need, opened
from .rows import LINE, columns_of, frame_of, interactions, name_of, number_of, sift, split_rows, text_of

SLICES = ("mpd.slice.*.json",)
TABLES = ("playlists.csv",)
KINDS = {"user": "id", "item": "id", "time": "time"}
ABOUT = {
    "item": "id",
    "title": "text",
    "artist": "text",
    "artist_name": "text",
    "album": "text",
    "duration_ms": "whole",
}


def read(
    path: str | Path, *, name: str = "playlists", most_bad: float = 0.01, progress: Progress | None = None
) -> Interactions:
    """Tracks of playlists as events (user: the playlist, item: the track, time: its position); of tracks what is told.

    path:     a folder of mpd.slice.*.json files, or of playlists.csv (playlist_id, track_id, pos) with a tracks.csv
              (track_id, and artist_id, album_id, duration_sec where known) beside it; or one such file
    most_bad: the largest share of rows that may be malformed
    """
    found = files(path, (*SLICES, *TABLES), "playlists")
    need(found, path, (*SLICES, *TABLES), "playlists")
    slices = [f for f in found if f.name.removesuffix(".gz").endswith(".json")]
    return _slices(slices, name, most_bad, progress, path) if slices else _tables(found[0], name, most_bad, progress)


# ---- slices ---------------------------------------------------------------------------------------------------------


def _slices(found: list[Path], name: str, most_bad: float, progress: Progress | None, path) -> Interactions:
    """A slice is one JSON object of 1,000 playlists: it is held whole, one at a time."""
    tally = Tally(most_bad, "tracks in playlists")
    about = {c: kind for c, kind in ABOUT.items() if c != "item"}
    text = [c for c, kind in about.items() if kind == "text"]
    events = []
    for file in found:
        if progress:
            progress(file.stat().st_size)
        rows = frame_of(list(_tracks(file, tally)), {LINE: pl.Int64, **dict.fromkeys((*KINDS, *about), pl.String)})
        # A track is described wherever it stands: as categories, words that come again and again cost little.
        events.append(sift(rows, KINDS | about, file, tally).with_columns(pl.col(text).cast(pl.Categorical)))
    of_items = Tally(most_bad)
    return interactions(name, events, [], tally, of_items, path=path, absolute=False, described=list(about))


def _tracks(file: Path, tally: Tally) -> Iterator[tuple]:
    """A row per track. Its line is the number of its playlist in the file: slices are often one line of text."""
    try:
        with opened(file) as raw:
            playlists = json.load(raw)["playlists"]
        if not isinstance(playlists, list):
            raise TypeError("`playlists` is not a list")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"'{file}' must be a JSON object with a list of `playlists`, and is not: {str(error) or 'it is nested too deep'}. "
            "Fetch it again, or move it out of the folder."
        ) from error
    for number, playlist in enumerate(playlists, 1):
        tracks = playlist.get("tracks") if isinstance(playlist, dict) else None
        if not isinstance(tracks, list):
            tally.read += 1
            tally.skip(file, number, "a playlist without tracks")
            continue
        for track in tracks:
            tally.read += 1
            if isinstance(track, dict):
                yield (number, *_track(name_of(playlist.get("pid")), track))
            else:
                tally.skip(file, number, "not a JSON object")


def _track(user: str | None, track: dict) -> tuple:
    return (
        user,
        name_of(track.get("track_uri")),
        number_of(track.get("pos")),
        text_of(track.get("track_name")),
        text_of(track.get("artist_uri")),
        text_of(track.get("artist_name")),
        text_of(track.get("album_uri")),
        number_of(track.get("duration_ms")),
    )


# ---- tables ---------------------------------------------------------------------------------------------------------


def _tables(file: Path, name: str, most_bad: float, progress: Progress | None) -> Interactions:
    tally, of_items = Tally(most_bad), Tally(most_bad, "lines of tracks")
    events = []
    for batch in split_rows(file, tally, progress=progress):
        columns_of(batch, ["playlist_id", "track_id", "pos"], file)
        given = batch.rename({"playlist_id": "user", "track_id": "item", "pos": "time"})
        events.append(sift(given, KINDS | {"time": "order"}, file, tally))  # published tables have positions of -1
    items = []
    for tracks in files(file.parent, ("tracks.csv",), "tracks")[:1]:
        for batch in split_rows(tracks, of_items, progress=progress):
            columns_of(batch, ["track_id"], tracks)
            items.append(_described(batch, tracks, of_items))
    return interactions(name, events, items, tally, of_items, path=file, absolute=False)


def _described(batch: pl.DataFrame, file: Path, tally: Tally) -> pl.DataFrame:
    """What a table tells of its tracks, by our names; its other columns as they are."""
    ours = {"track_id": "item", "track_name": "title", "artist_id": "artist", "album_id": "album"}
    batch = batch.rename({old: new for old, new in ours.items() if old in batch.columns and new not in batch.columns})
    kinds = {c: ABOUT.get(c, "text") for c in batch.columns if c != LINE} | {"item": "id"}
    if "duration_sec" in batch.columns and "duration_ms" not in batch.columns:
        rows = sift(batch, kinds | {"duration_sec": "number"}, file, tally)
        return rows.with_columns((pl.col("duration_sec") * 1000).round().cast(pl.Int64).alias("duration_ms")).drop(
            "duration_sec"
        )
    return sift(batch, kinds, file, tally)
