"""Text in batches: what a line is, and where one stands in its file."""

import gzip

import pytest

from spdd.data.lines import Tally, batches


def read(path, **options):
    tally = Tally(1.0)
    return [
        (number, text)
        for lines in batches(path, tally, **options)
        for number, text in enumerate(lines.text, lines.first)
        if text is not None
    ], tally


@pytest.mark.parametrize("batch", [1, 3, 7, 1 << 20])
def test_lines_keep_their_numbers(tmp_path, monkeypatch, batch):
    monkeypatch.setattr("spdd.data.lines.BATCH", batch)
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  \ntwo\n\xff\nthr\xc3\xa9e\n\nfour")
    lines, tally = read(path)
    assert lines == [(1, "one"), (4, "two"), (6, "thrée"), (8, "four")]
    assert tally.read == 5
    assert tally.skipped == {"not UTF-8": 1}
    assert tally.first == (path, 5, "not UTF-8")


def test_joined_archives_are_one_text(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n"))
    assert read(path)[0] == [(1, "a"), (2, "bc")]


def test_no_end_of_line_in_sight_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("spdd.data.lines.BATCH", 100)
    monkeypatch.setattr("spdd.data.lines.LONGEST", 1000)
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"ok\n" + bytes(10_000)))
    with pytest.raises(ValueError, match="must be a text of lines"):
        read(path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:20], lambda b: b[:-4], lambda b: b[:40] + b"??" + b[42:], lambda b: b + b"x"]
)
def test_damaged_archives_are_refused(tmp_path, damage):
    path = tmp_path / "x.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 40)))
    with pytest.raises(ValueError, match=r"x\.gz' must be a whole gzip file"):
        read(path)


def test_tally_names_the_first_of_all_and_counts_shares():
    tally = Tally(0.5)
    tally.read = 10
    tally.skip("f", 7, "late", 3)
    tally.skip("f", 2, "early", 2)
    tally.check()
    tally.skip("g", 1, "late")
    with pytest.raises(
        ValueError, match=r"at most 0.5 of the lines.*got 6 of 10 \(4 late, 2 early\).*line 2 of 'f': early"
    ):
        tally.check()
