"""A checkpoint comes back as it was saved, and nothing else is taken for one."""

import errno
import os

import pytest
import torch

from spdd.models import checkpoint

ABOUT = {"kind": "toy", "config": {"wide": 4}, "fingerprint": "abc"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.pt"
    checkpoint.save(path, **ABOUT, weights={"w": torch.arange(3.0)}, epoch=7)
    return path


def test_comes_back_as_it_was(path):
    held = checkpoint.load(path, kind="toy", fingerprint="abc")
    assert held[:2] == ("toy", {"wide": 4})
    assert held.weights["w"].tolist() == [0, 1, 2]
    assert held[3:] == ("abc", {"epoch": 7})


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt' is not there"):
        checkpoint.load(tmp_path / "none.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 some zip", b"\x00\xff" * 50, b"spdd-checkpoint-2 00\n"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.pt' is no checkpoint"):
        checkpoint.load(path)


def test_torch_file_is_refused(tmp_path):
    torch.save({"kind": "toy"}, tmp_path / "plain.pt")
    with pytest.raises(ValueError, match="is no checkpoint"):
        checkpoint.load(tmp_path / "plain.pt")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_file_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match="truncated or damaged"):
        checkpoint.load(path)


def test_flipped_bit_is_refused(path):
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    with pytest.raises(ValueError, match="truncated or damaged"):
        checkpoint.load(path)


def test_code_is_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    checkpoint.save(tmp_path / "trap.pt", **{**ABOUT, "config": {"x": Trap()}}, weights={})
    with pytest.raises(ValueError, match="something else than tensors and plain values"):
        checkpoint.load(tmp_path / "trap.pt")
    assert not (tmp_path / "trapped").exists()


def test_other_kind_is_refused(path):
    with pytest.raises(ValueError, match="holds a 'toy' model; a 'sasrec' model is wanted"):
        checkpoint.load(path, kind="sasrec")


def test_foreign_catalog_is_refused(path):
    with pytest.raises(ValueError, match=r"trained on other items: its catalog fingerprint is abc.*xyz"):
        checkpoint.load(path, fingerprint="xyz")


def test_full_disk_is_a_clear_error_and_the_old_file_stays(path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"model\.pt' .*cannot be written: No space left on device\. What was there"):
        checkpoint.save(path, **ABOUT, weights={"w": torch.zeros(3)})
    assert checkpoint.load(path).weights["w"].tolist() == [0, 1, 2]
    assert os.listdir(path.parent) == ["model.pt"]


def test_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(OSError, match=r"cannot be written: the folder of .* does not exist\. Make it first"):
        checkpoint.save(tmp_path / "no" / "model.pt", **ABOUT, weights={})
