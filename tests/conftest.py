"""What every test may count on: one torch thread, repeatable hypothesis, and a clear reason for each skip.

No option widens or narrows the default run: it is all this machine can do.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("SPDD_DATA") or ROOT.parent / "shared" / "data")

# Tensors here are small: a second thread gains nothing, and on a busy machine two wait for each other in every operation.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and of every process a test starts
# No deadline: a first call may compile. No random seed: a red test stays red.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items):
    # Mark -> why tests that bear it cannot run here, or "" when they can.
    why_not = {
        "gpu": "" if torch.cuda.is_available() else "no CUDA device",
        "triton": _no_triton(),
        "vllm": "" if importlib.util.find_spec("vllm") else "vLLM is not installed",
        "real_data": "" if DATA.is_dir() else f"no data folder at {DATA}; set SPDD_DATA",
        "browser": "" if shutil.which("chromium") else "chromium is not on the PATH",
    }
    for item in items:
        for mark, reason in why_not.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_triton():
    if not importlib.util.find_spec("triton"):
        return "Triton is not installed; make test-triton brings it"
    return (
        ""
        if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
        else "no CUDA, no TRITON_INTERPRET=1"
    )


@pytest.fixture(scope="session")
def shared_data():
    """The folder of public data sets; the test is skipped where there is none."""
    if not DATA.is_dir():
        pytest.skip(f"no data folder at {DATA}; set SPDD_DATA")
    return DATA
