"""Fetching ends with a whole file or a clear refusal, whatever the server does. All servers here are our own."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import pytest

from spdd.data import download

BODY = bytes(range(256)) * 4000  # about a megabyte
MD5 = f"md5:{hashlib.md5(BODY).hexdigest()}"


class Server:
    """Serves one file, badly where asked to.

    drop: after how many bytes each of the next answers breaks off.  ranges: whether it honours Range
    """

    def __init__(self):
        self.body, self.drop, self.ranges, self.tag, self.status = BODY, [], True, '"v1"', 200
        self.asked = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/file.bin"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, to):
        given = to.headers.get("Range")
        self.asked.append(given)
        if self.status != 200:
            to.send_response(self.status)
            to.send_header("Location", "http://example.org/")
            to.end_headers()
            return
        begin = 0
        same = to.headers.get("If-Range") in (None, self.tag)
        if given and self.ranges and same:
            begin = int(given.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(self.body):
                to.send_response(416)
                to.send_header("Content-Range", f"bytes */{len(self.body)}")
                to.end_headers()
                return
            to.send_response(206)
            to.send_header("Content-Range", f"bytes {begin}-{len(self.body) - 1}/{len(self.body)}")
        else:
            to.send_response(200)
        to.send_header("Content-Length", str(len(self.body) - begin))
        if self.tag:
            to.send_header("ETag", self.tag)
        to.end_headers()
        end = begin + self.drop.pop(0) if self.drop else len(self.body)
        to.wfile.write(self.body[begin:end])


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def get(server, folder, **options):
    return download.get(server.url, folder / "file.bin", wait=0.001, **options)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_whole_file_with_progress(server, tmp_path):
    heard = []
    path = get(server, tmp_path, checksum=MD5, told=lambda *what: heard.append(what))
    assert path.read_bytes() == BODY
    assert names(tmp_path) == ["file.bin"]
    assert heard[-1] == ("file.bin", len(BODY), len(BODY))
    assert [h[1] for h in heard] == sorted(h[1] for h in heard)
    get(server, tmp_path, checksum=MD5)
    assert len(server.asked) == 1  # it is there already


def test_a_dropped_connection_goes_on_where_it_stopped(server, tmp_path):
    server.drop = [300_000, 0, 100_000]
    assert get(server, tmp_path, checksum=MD5).read_bytes() == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=300000-", "bytes=400000-"]


def test_a_later_run_goes_on_too(server, tmp_path):
    server.drop = [300_000] + [0] * download.TRIES
    with pytest.raises(ValueError, match=r"300,000 bytes are kept in .*file\.bin\.part'; the same command goes on"):
        get(server, tmp_path, checksum=MD5)
    server.asked.clear()
    assert get(server, tmp_path, checksum=MD5).read_bytes() == BODY
    assert server.asked == ["bytes=300000-"]
    assert names(tmp_path) == ["file.bin"]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges, server.drop = False, [300_000]
    assert get(server, tmp_path, checksum=MD5).read_bytes() == BODY
    assert len(server.asked) == 2


def test_a_file_that_changed_meanwhile_starts_over(server, tmp_path):
    server.drop = [300_000] + [0] * download.TRIES
    with pytest.raises(ValueError, match="are kept"):
        get(server, tmp_path)
    server.body, server.tag = BODY[::-1], '"v2"'
    assert get(server, tmp_path).read_bytes() == BODY[::-1]


def test_a_part_of_something_else_is_not_built_upon(server, tmp_path):
    for rubbish in (b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 5)):
        (tmp_path / "file.bin.part").write_bytes(rubbish)
        assert get(server, tmp_path, checksum=MD5).read_bytes() == BODY
        (tmp_path / "file.bin").unlink()


def test_a_corrupted_file_is_refused_and_not_kept(server, tmp_path):
    server.body = BODY[:-1] + b"?"
    with pytest.raises(ValueError, match=r"file\.bin' must have its publisher's md5 .*, got .*damaged or has changed"):
        get(server, tmp_path, checksum=MD5)
    assert "file.bin" not in names(tmp_path)
    assert "file.bin.part" not in names(tmp_path)
    server.body = BODY
    assert get(server, tmp_path, checksum=MD5).read_bytes() == BODY


def test_without_a_published_checksum_the_first_one_counts(server, tmp_path):
    path = get(server, tmp_path)
    kept = tmp_path / "file.bin.sha256"
    assert kept.read_text() == f"{hashlib.sha256(BODY).hexdigest()}  file.bin\n"
    path.write_bytes(b"spoiled")
    with pytest.raises(ValueError, match=r"that of the first fetch.*Delete it and fetch it again"):
        get(server, tmp_path)
    path.unlink()
    server.body = BODY + b"!"
    with pytest.raises(ValueError, match=r"or delete file\.bin\.sha256 to take the new one"):
        get(server, tmp_path)
    kept.unlink()
    assert get(server, tmp_path).read_bytes() == BODY + b"!"


def test_a_missing_file_is_told_at_once(server, tmp_path):
    server.status = 404
    with pytest.raises(ValueError, match=r"the server says 404.*Is the name right"):
        get(server, tmp_path)
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.status = 503
    with pytest.raises(ValueError, match="the server says 503"):
        get(server, tmp_path)
    assert len(server.asked) == download.TRIES


def test_nothing_leaves_https(server, tmp_path):
    with pytest.raises(ValueError, match=r"HTTPS only, got 'http://example\.org/x'"):
        download.get("http://example.org/x", tmp_path / "x")
    with pytest.raises(ValueError, match=r"HTTPS only, got 'file:///etc/passwd'"):
        download.get("file:///etc/passwd", tmp_path / "x")
    server.status = 302
    with pytest.raises(ValueError, match=r"HTTPS only, got 'http://example\.org/'"):
        get(server, tmp_path)
    for wanted in download.SETS.values():
        assert all(url.startswith("https://") for url in wanted.files)


def zipped(**files):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:
        for name, text in files.items():
            file.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return raw.getvalue()


def tarred(name, text):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as file:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        file.addfile(entry, io.BytesIO(text))
    return raw.getvalue()


def test_a_set_is_unpacked_once(server, tmp_path, monkeypatch):
    server.body = zipped(**{"ml__ratings_dot_csv": "userId,movieId,rating,timestamp\n1,1,5,1\n"})
    wanted = download.Published({server.url.replace("file.bin", "ml.zip"): None}, "ml", "")
    monkeypatch.setitem(download.SETS, "ml", wanted)
    for _ in range(2):
        folder = download.fetch("ml", tmp_path)
        assert (folder / "ratings.csv").exists()
    assert len(server.asked) == 1
    assert names(tmp_path) == ["ml", "ml.zip", "ml.zip.sha256"]


def test_hostile_archives_stay_inside(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.zip").write_bytes(zipped(**{"_dot__dot___outside": "x"}))
    (inside / "a.tar.gz").write_bytes(tarred("../outside", b"x"))
    (inside / "cut.tar.gz").write_bytes(tarred("ml/x", b"x" * 99)[:-20])
    (inside / "text.zip").write_bytes(b"no archive")
    for name in ("a.zip", "a.tar.gz", "cut.tar.gz", "text.zip"):
        with pytest.raises(ValueError, match="must"):
            download.unpack(inside / name, inside, "ml")
    assert names(tmp_path) == ["inside"]
    assert names(inside) == ["a.tar.gz", "a.zip", "cut.tar.gz", "text.zip"]


def test_names_of_sets():
    amazon = download.published("amazon-2023-Sports_and_Outdoors")
    assert [url.rsplit("/", 1)[1] for url in amazon.files] == [
        "Sports_and_Outdoors.jsonl.gz",
        "meta_Sports_and_Outdoors.jsonl.gz",
    ]
    for wrong in ("movielens", "amazon-2014-Books", "amazon-2023-../x", "amazon-2018-", ""):
        with pytest.raises(ValueError, match=r"data sets that can be fetched are movielens-100k.*got"):
            download.published(wrong)
