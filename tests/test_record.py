"""Published results come from code that a commit has."""

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import record


@pytest.mark.parametrize("changed", [[], ["src/spdd/slate.py"]])
def test_published_results_come_from_what_is_committed(changed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "commit", lambda: "abc" + "-dirty" * bool(changed))
    monkeypatch.setattr(record, "changed", lambda: changed)
    published, elsewhere = tmp_path / "benchmarks" / "results" / "x.jsonl", tmp_path / "x.jsonl"
    record.write({"benchmark": "x"}, [{"ms": 1.0}], elsewhere)
    assert elsewhere.exists()
    if changed:
        with pytest.raises(argparse.ArgumentTypeError, match=r"src/spdd/slate\.py"):
            record.write({"benchmark": "x"}, [{"ms": 1.0}], published)
        with pytest.raises(SystemExit):
            record.parser("x").parse_args(["--out", str(published)])
        assert capsys.readouterr().out.count('"ms": 1.0') == 2  # what was measured is told, all the same
    else:
        record.write({"benchmark": "x"}, [{"ms": 1.0}], published)
    assert published.exists() == (not changed)
