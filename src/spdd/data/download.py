"""Fetching public data sets from their publishers' own hosts, for those who allow it.

A fetch that breaks off goes on where it stopped: what came so far is kept beside the target as NAME.part, and only the
rest is asked for, and only if the file has not changed meanwhile. The file gets its name when it is whole and its
checksum is right. Where a publisher gives no checksum, the one of the first fetch is kept in NAME.sha256, and later
fetches must match it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 18
TRIES = 5  # in a row without a byte
TIMEOUT = 30.0  # seconds without a byte
HERE = ("localhost", "127.0.0.1", "::1")
Told = Callable[[str, int, int | None], object]  # file name, bytes so far, bytes in all where known

GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
ZENODO = "https://zenodo.org/records/10439422/files/"
UCSD = "https://mcauleylab.ucsd.edu/public_datasets/data/"


class Published(NamedTuple):
    """A data set that may be fetched.

    files:  address -> checksum as "md5:..." or "sha256:...", or None where the publisher gives none
    folder: of the raw files, inside the folder it is fetched into
    terms:  where its publisher says what it may be used for
    """

    files: dict[str, str | None]
    folder: str
    terms: str


def _movielens(name: str, checksum: str | None) -> Published:
    return Published(
        {f"{GROUPLENS}{name}.zip": checksum}, name, f"https://files.grouplens.org/datasets/movielens/{name}-README.html"
    )


def _kuairand(size: str, checksum: str) -> Published:
    name = f"KuaiRand-{size}"
    return Published({f"{ZENODO}{name}.tar.gz": checksum}, f"{name}/data", "https://zenodo.org/records/10439422")


SETS = {
    "movielens-100k": _movielens("ml-100k", "md5:0e33842e24a9c977be4e0107933c0723"),
    "movielens-1m": _movielens("ml-1m", "md5:c4d9eecfca2ab87c1945afe126590906"),
    "movielens-20m": _movielens("ml-20m", "md5:cd245b17a1ae2cc31bb14903e1204af3"),
    "movielens-25m": _movielens("ml-25m", "md5:6b51fb2759a8657d3bfcbfc42b592ada"),
    "movielens-latest-small": _movielens("ml-latest-small", None),  # it changes, so it has no fixed checksum
    "kuairand-pure": _kuairand("Pure", "md5:0820331067a3784d9691136f772b35a7"),
    "kuairand-1k": _kuairand("1K", "md5:6b0b9c8222d67fcd4c676218edca3f1f"),
    "kuairand-27k": _kuairand("27K", "md5:3e3c799a24e2d23a4d2c757fbf9adf59"),
}


def published(name: str) -> Published:
    """The set called `name`: one of SETS, or amazon-2018-CATEGORY, amazon-2023-CATEGORY."""
    if name in SETS:
        return SETS[name]
    if found := re.fullmatch(r"amazon-(2018|2023)-(\w+)", name):
        year, category = found.groups()
        files = (
            (f"amazon_v2/categoryFilesSmall/{category}_5.json.gz", f"amazon_v2/metaFiles2/meta_{category}.json.gz")
            if year == "2018"
            else (
                f"amazon_2023/raw/review_categories/{category}.jsonl.gz",
                f"amazon_2023/raw/meta_categories/meta_{category}.jsonl.gz",
            )
        )
        terms = "https://nijianmo.github.io/amazon/" if year == "2018" else "https://amazon-reviews-2023.github.io/"
        return Published({UCSD + f: None for f in files}, name, terms)
    raise ValueError(
        f"data sets that can be fetched are {', '.join(SETS)}, and amazon-2018-CATEGORY, amazon-2023-CATEGORY with a "
        f"category spelt as in Sports_and_Outdoors; got {name!r}. Others are read from a path of yours."
    )


def fetch(name: str, folder: str | Path, *, told: Told | None = None) -> Path:
    """The folder of the raw files of a public data set, fetched and unpacked unless they are there already.

    name:   see `published`
    folder: where sets are kept; each gets a place of its own there
    told:   is called with a file's name, its bytes so far, and its bytes in all
    """
    wanted = published(name)
    ready = Path(folder) / wanted.folder
    packed = [url for url in wanted.files if url.endswith((".zip", ".tar.gz"))]
    if packed and ready.is_dir():
        return ready
    for url, checksum in wanted.files.items():
        place = Path(folder) if url in packed else ready
        file = get(url, place / url.rsplit("/", 1)[1], checksum=checksum, told=told)
        if url in packed:
            unpack(file, Path(folder), wanted.folder.split("/")[0])
    if not ready.is_dir():
        raise ValueError(
            f"'{name}' must unpack to '{ready}', and does not: its publisher has changed it. Look into '{folder}'."
        )
    return ready


def get(
    url: str, path: str | Path, *, checksum: str | None = None, told: Told | None = None, wait: float = 1.0
) -> Path:
    """The file at `url`, whole and checked, at `path`.

    checksum: "md5:..." or "sha256:..."; left out, that of the first fetch, kept in a file beside
    wait:     seconds before the first new try; they double
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _check(path, path, checksum)
        return path
    part = path.with_name(f"{path.name}.part")
    began_with = part.stat().st_size if part.exists() else 0
    _receive(url, part, told, wait)
    try:
        _check(part, path, checksum)
    except ValueError:
        part.unlink()
        if not began_with:
            raise
        _receive(url, part, told, wait)  # what an earlier run had left may have been of another version
        try:
            _check(part, path, checksum)
        except ValueError:
            part.unlink()
            raise
    os.replace(part, path)
    _stamp(part).unlink(missing_ok=True)
    return path


def unpack(archive: Path, folder: Path, name: str) -> None:
    """The folder `name` of an archive, in `folder`: all of it or nothing."""
    beside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                file.extractall(beside)  # never leaves the folder, whatever the names inside
        else:
            with tarfile.open(archive) as file:
                file.extractall(beside, filter="data")
        if not (beside / name).is_dir():
            raise ValueError(f"'{archive}' must hold a folder '{name}', and does not. Fetch it again.")
        os.replace(beside / name, folder / name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"'{archive}' must be an archive, and is not: {error}. Delete it, and fetch it again."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# ---- receiving ------------------------------------------------------------------------------------------------------


class _Secure(urllib.request.HTTPRedirectHandler):
    """Follows no redirect that leaves HTTPS."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str) -> None:
    address = urllib.parse.urlsplit(url)
    if address.scheme != "https" and not (address.scheme == "http" and address.hostname in HERE):
        raise ValueError(f"data is fetched by HTTPS only, got '{url}'. Use an address that begins with https://.")


def _receive(url: str, part: Path, told: Told | None, wait: float) -> None:
    """Fill `part` until it is whole, over as many connections as it takes."""
    _check_address(url)
    fails = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            if _connection(url, part, told):
                return
            problem = "the connection broke off"
        except urllib.error.HTTPError as error:
            if error.code not in (408, 425, 429, 500, 502, 503, 504):
                raise ValueError(
                    f"'{url}' cannot be fetched: the server says {error.code} {error.reason}. Is the name right?"
                ) from error
            problem = f"the server says {error.code} {error.reason}"
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        now = part.stat().st_size if part.exists() else 0
        fails = 0 if now > have else fails + 1
        if fails >= TRIES:
            raise ValueError(
                f"'{url}' cannot be fetched: {problem}. {now:,} bytes are kept in '{part}'; the same command goes on from there."
            )
        time.sleep(wait * 2 ** max(0, fails - 1))


def _connection(url: str, part: Path, told: Told | None) -> bool:
    """Whether `part` is whole after one more connection."""
    have = part.stat().st_size if part.exists() else 0
    stamp = _stamp(part).read_text() if have and _stamp(part).exists() else ""
    request = urllib.request.Request(url, headers={"User-Agent": "spdd", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if stamp:
            request.add_header("If-Range", stamp)
    try:
        answer = urllib.request.build_opener(_Secure).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if whole and int(whole[1]) == have:
            return True
        part.unlink()  # longer than the file: it is of another one
        return False
    with answer:
        begin, total = _extent(answer, have)
        # A weak tag does not promise the same bytes, so it must not be used to go on.
        tag = answer.headers.get("ETag", "")
        _stamp(part).write_text(tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", ""))
        with part.open("r+b" if begin else "wb") as file:
            file.seek(begin)
            file.truncate()
            while more := _some(answer):
                file.write(more)
                if told:
                    told(part.name.removesuffix(".part"), file.tell(), total)
            file.flush()
            os.fsync(file.fileno())
            return total is None or file.tell() == total


def _extent(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where in the file an answer begins, and how long the file is, where that is said."""
    if answer.status == 206:
        extent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if extent and int(extent[1]) == have:
            return have, None if extent[2] == "*" else int(extent[2])
        raise http.client.HTTPException("the server sends another part than was asked for")
    length = answer.headers.get("Content-Length", "")  # 200: the server ignores ranges, or the file has changed
    return 0, int(length) if length.isdigit() else None


def _some(answer) -> bytes:
    try:
        return answer.read1(CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial


def _stamp(part: Path) -> Path:
    """Beside a part: what its server calls this version of the file."""
    return part.with_name(f"{part.name}.version")


def _check(file: Path, path: Path, checksum: str | None) -> None:
    """Refuse a file whose checksum is not the published one, or not that of the first fetch of `path`."""
    kept = path.with_name(f"{path.name}.sha256")
    first = None
    if checksum is None:
        with contextlib.suppress(FileNotFoundError):
            first = kept.read_text("utf-8").split()[0]
    kind, _, wanted = checksum.partition(":") if checksum else ("sha256", "", first)
    with file.open("rb") as raw:
        came = hashlib.file_digest(raw, kind).hexdigest()
    if wanted is None:
        kept.write_text(f"{came}  {path.name}\n", "utf-8")
    elif came != wanted:
        source = "its publisher's" if checksum else f"that of the first fetch, kept in '{kept}',"
        raise ValueError(
            f"'{path}' must have {source} {kind} {wanted}, got {came}: it is damaged or has changed. "
            f"{'Delete it and f' if file == path else 'F'}etch it again{'' if checksum else f', or delete {kept.name} to take the new one'}."
        )
