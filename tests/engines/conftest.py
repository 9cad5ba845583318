"""What every test inside an engine may count on: one torch thread."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Threads only wait for each other over tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
