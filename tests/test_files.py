"""Files take their place whole or not at all, and are as readable as any file."""

import os

import numpy as np
import pytest
import torch

from spdd.catalog import Catalog
from spdd.data import prepared
from spdd.data.interactions import Items, Sequences, Split
from spdd.evaluate import sweep
from spdd.files import atomic, write_atomically
from spdd.models import checkpoint


def split():
    rows = Sequences(np.array(["u"]), np.array([0, 1]), np.array([0]), np.array([1]), {})
    return Split(Items(np.array(["i"]), {}), rows, rows, rows)


WRITERS = {
    "text": lambda path: write_atomically(path, "new"),
    "catalog": lambda path: Catalog.of([[0], [1]]).save(path),
    "prepared": lambda path: prepared.save(split(), path),
    "checkpoint": lambda path: checkpoint.save(path, kind="k", config={}, weights={"w": torch.ones(2)}, fingerprint=""),
    "sweep": lambda path: sweep._save(path, hit=np.ones(3)),
}


@pytest.mark.skipif(os.name != "posix", reason="modes")
@pytest.mark.parametrize("name", WRITERS)
def test_others_may_read_what_was_written(name, tmp_path):
    (tmp_path / "plain").write_text("")
    WRITERS[name](tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", WRITERS)
def test_an_old_file_stays_and_nothing_is_left_when_writing_fails(name, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spdd.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        WRITERS[name](tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_an_error_half_way_keeps_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old")

    def write():
        with atomic(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
