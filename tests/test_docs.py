"""Untested docs are wrong docs: every example in README.md, docs/ and our docstrings is run.

In a Markdown file, top to bottom, in one empty folder:
- ```python blocks share one namespace; a ```text or ```output block right below one is what it prints;
- in ```console blocks, `$ spdd ...` lines run as typed (`\\` continues a line), and what stands below is what they
  print. Other `$` lines are for the reader.
No block can opt out. Pages that need an engine (MARKS) run where it is installed. Trailing blanks do not count: editors remove them.
"""

import contextlib
import doctest
import importlib
import io
import itertools
import os
import re
import subprocess
import sys
import traceback
import types
import unittest.mock
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKS = {"docs/vllm.md": [pytest.mark.vllm, pytest.mark.filterwarnings("default")]}
MODULES = [path for path in sorted((ROOT / "src").rglob("*.py")) if ">>> " in path.read_text("utf-8")]


def with_marks(path):
    """A page that needs an engine is run where the engine is, by `make test-engines`."""
    name = path.relative_to(ROOT).as_posix()
    return pytest.param(path, id=name, marks=MARKS.get(name, ()))


@pytest.mark.parametrize("path", [with_marks(path) for path in PAGES])
def test_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with unittest.mock.patch.dict(os.environ):  # what a page sets is gone afterwards
        run_page(path, path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_docstrings(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    report = io.StringIO()
    with contextlib.redirect_stdout(report), unittest.mock.patch.dict(os.environ):
        failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not failed, report.getvalue()


class Block(NamedTuple):
    tag: str  # all that follows the opening fence
    line: int  # of its first line of text
    lines: list[str]
    after: bool  # nothing but blank lines between this block and the one before


def run_page(path, name):
    """Run every example of one file in the current folder. The first that fails is named by file and line."""
    # A real module: dataclasses look up the module they were made in.
    page = types.ModuleType("page")
    page.__file__ = str(path)
    todo = blocks(path.read_text("utf-8"), name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "page", page)
        for block, below in itertools.zip_longest(todo, todo[1:]):
            if block.tag == "python":
                printed = run_python(block, page, name)
                if below and below.after and below.tag in {"text", "output"}:
                    compare(printed, below.lines, f"{name}:{below.line}")
            elif block.tag == "console":
                run_console(block, name)
            elif re.match(r"(python|py|pycon|console)\b", block.tag):
                plain = "console" if block.tag.startswith("console") else "python"
                raise AssertionError(f"{name}:{block.line - 1}: write ```{plain}, not ```{block.tag}: all examples run")


def run_python(block, page, name):
    source = "\n" * (block.line - 1) + "\n".join(block.lines)  # so that Python counts lines as the file does
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(source, page.__file__, "exec", dont_inherit=True), page.__dict__)
    except (Exception, SystemExit) as error:
        trail = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == page.__file__]
        line = trail[-1] if trail else getattr(error, "lineno", None) or block.line
        raise AssertionError(f"{name}:{line}: {type(error).__name__}: {error}") from error
    return out.getvalue()


def run_console(block, name):
    # As a reader has it: our `spdd` first on the PATH, and no colours or odd widths in what is compared.
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": here, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    for command, expected, line in commands(block):
        if not re.match(r"spdd\b", command):
            continue
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{name}:{line}: `{command}` exits with {done.returncode}:\n{done.stdout}")
        if any(text.strip() for text in expected):
            compare(done.stdout, expected, f"{name}:{line}: `{command}`")


def commands(block):
    """(command, what stands below it, its line) for each `$` line."""
    found = []
    continued = False
    for line, text in enumerate(block.lines, block.line):
        if continued:
            found[-1][0] += "\n" + text
        elif text.startswith("$ "):
            found.append([text[2:], [], line])
        elif found:
            found[-1][1].append(text)
        continued = text.endswith("\\") and (continued or text.startswith("$ "))
    return found


def compare(printed, expected, where):
    got, want = ([line.rstrip() for line in lines] for lines in (printed.splitlines(), expected))
    got, want = ("\n".join(lines).strip("\n") for lines in (got, want))
    if got != want:  # not `assert`: pytest would re-indent the message
        raise AssertionError(f"{where} does not print what the page says.\n--- the page\n{want}\n--- printed\n{got}")


def blocks(text, name):
    """The fenced blocks of a Markdown text, in order."""
    found, fence, after = [], None, False
    for number, line in enumerate(text.splitlines(), 1):
        if fence is None:
            fence = re.match(r"( *)(```+|~~~+)\s*(.*?)\s*$", line)
            if fence:
                found.append(Block(fence[3], number + 1, [], after))
            after = after and not line.strip()
        elif line.strip() == fence[2]:
            fence, after = None, True
        else:
            found[-1].lines.append(line.removeprefix(fence[1]))
    assert fence is None, f"{name}:{found[-1].line - 1}: this block is never closed"
    return found


# A check that cannot fail is a defect: what follows must be caught, or run.

GOOD = """
```python
import dataclasses
x = 1
print("one")
```

```text
one
```

- in a list

  ```python
  from __future__ import annotations
  @dataclasses.dataclass
  class Y:
      y: int = x + 1
  print(Y().y)
  ```
  ```output
  2
  ```

```text
not what anything prints
```

```console
$ spdd --version
$ pip install nothing-of-the-kind
```
"""


def test_good_page_runs(tmp_path, monkeypatch):
    fake_spdd(tmp_path, monkeypatch, "exit 0")
    run_page(page(tmp_path, GOOD), "good.md")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a\n```python\nx = 1\n1 / 0\n```\n", "bad.md:4: ZeroDivisionError"),
        ("```python\nx = = 1\n```\n", "bad.md:2: SyntaxError"),
        ("```python\nraise SystemExit\n```\n", "bad.md:2: SystemExit"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "bad.md:6 does not print"),
        ("```python no-run\nx\n```\n", "bad.md:1: write"),
        ("```py\nx\n```\n", "bad.md:1: write"),
        ("\n```python\nx\n", "bad.md:2: this block is never closed"),
        ("```console\n$ spdd fail\n```\n", "bad.md:2: `spdd fail` exits with 3"),
        ("```console\n$ spdd say \\\n    hello\nhi\n```\n", "bad.md:2: `spdd say \\\n    hello` does not print"),
    ],
)
def test_bad_page_is_named(tmp_path, monkeypatch, text, complaint):
    fake_spdd(tmp_path, monkeypatch, '[ "$1" = say ] && echo "$2" || exit 3')
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        run_page(page(tmp_path, text), "bad.md")


def test_console_output_is_compared(tmp_path, monkeypatch):
    fake_spdd(tmp_path, monkeypatch, 'echo "$2  "')
    run_page(page(tmp_path, "```console\n$ spdd say \\\n    hello | tee said.txt\nhello\n```\n"), "good.md")
    assert (tmp_path / "said.txt").read_text() == "hello  \n"


def page(folder, text):
    path = folder / "page.md"
    path.write_text(text)
    return path


def fake_spdd(folder, monkeypatch, script):
    """An `spdd` of two lines beside a made-up interpreter, where the real one would lie."""
    path = folder / "bin" / "spdd"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path.with_name("python")))
    monkeypatch.chdir(folder)
