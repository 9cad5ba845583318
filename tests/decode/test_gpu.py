"""The same slates on a GPU as on the CPU, and a loop over slots that never waits for the device."""

import pytest
import torch
from test_contract import DECODERS, world

import spdd
from spdd.decode import decoder, products, walk, weighted
from spdd.decode.captured import Captured
from spdd.models.sasrec import Config, SASRec

pytestmark = pytest.mark.gpu
every = pytest.mark.parametrize("name", DECODERS)

SLOTS = 6


def drifting(w, device):
    """A model whose scores move with what was shown."""
    vector, logits = w.vector.double().to(device), w.logits.double().to(device)

    def scores(sequences):
        shown = vector[sequences.clamp_min(0)].masked_fill((sequences < 0)[:, :, None], 0).sum(1)
        return logits + 0.3 * shown @ vector.T

    return spdd.FromCallable(scores)


def slates(name, device):
    """From scores that stand still, and from a model."""
    w = world(rows=7)
    still = DECODERS[name](w, SLOTS).rerank(w.logits.double().to(device))
    model = drifting(w, device)
    histories = torch.zeros(7, 1, dtype=torch.int64, device=device)
    return still, DECODERS[name](w, SLOTS).generate(model, histories, exclude="seen")


@pytest.fixture
def no_waiting(monkeypatch):
    """Any wait of the host for the device, inside the loop over slots, is an error. Says how often the loop ran."""
    ran = []

    def checked(run):
        def loop(*given, **named):
            torch.cuda.set_sync_debug_mode("error")
            try:
                ran.append(run.__name__)
                return run(*given, **named)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return loop

    for module in (decoder, products, walk, weighted):
        monkeypatch.setattr(module, "run", checked(module.run))
    return ran


@every
def test_a_gpu_serves_the_slates_of_the_cpu(name):
    for here, there in zip(slates(name, "cpu"), slates(name, "cuda"), strict=True):
        assert there.items.device.type == "cuda"
        assert torch.equal(there.items.cpu(), here.items)
        assert torch.equal(there.status.cpu(), here.status)
        torch.testing.assert_close(there.gained.cpu(), here.gained)
        torch.testing.assert_close(there.dual.cpu(), here.dual, rtol=1e-9, atol=1e-9)


@every
def test_the_loop_over_slots_never_waits_for_the_device(name, no_waiting):
    slates(name, "cuda")
    assert no_waiting


def test_a_wait_inside_the_loop_is_caught(no_waiting):
    nosy = spdd.FromCallable(lambda sequences: torch.full((len(sequences), 9), float(sequences.sum()), device="cuda"))
    with pytest.raises(RuntimeError, match="synchroniz"):
        spdd.Greedy(slots=3).generate(nosy, torch.zeros(2, 1, dtype=torch.int64, device="cuda"))


def sasrec(items, device, kind=torch.float32):
    torch.manual_seed(0)
    model = SASRec(items, Config(width=16, heads=2, history=10, slots=SLOTS)).eval()
    torch.nn.init.normal_(model.embedding.weight)
    return model.to(device, kind)


UNWRITTEN = [
    "Greedy",
    "MustFill",
    "WA",
    "SPDD",
    "SPDD as printed",
    "SPDD from a number",
    "SPDD floor and cap",
    "SPDD two",
]


@pytest.mark.parametrize("name", UNWRITTEN)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_replayed_graph_serves_the_slates_of_the_plain_loop(name, kind, no_waiting, monkeypatch):
    monkeypatch.setattr(products, "WORTH", 0)
    w = world(rows=7, items=5000)
    model = sasrec(5000, "cuda", kind)
    fast = Captured(model)
    for seed in range(4):
        histories = torch.randint(-1, 5000, (7, 9), generator=torch.Generator().manual_seed(seed)).cuda()
        ours, theirs = (DECODERS[name](w, SLOTS).generate(x, histories, exclude="seen") for x in (fast, model))
        assert torch.equal(ours.items, theirs.items)
        torch.testing.assert_close(ours.dual, theirs.dual, rtol=1e-9, atol=1e-9)
    assert len(fast._recorded) == 1
    assert no_waiting


@pytest.mark.parametrize("name", UNWRITTEN)
def test_scores_that_are_never_written_give_the_cpu_s_slates(name, no_waiting, monkeypatch):
    monkeypatch.setattr(products, "WORTH", 0)
    w = world(rows=7, items=5000)
    histories = torch.randint(-1, 5000, (7, 9), generator=torch.Generator().manual_seed(0))
    there, here = (
        DECODERS[name](w, SLOTS).generate(sasrec(5000, device), histories.to(device), exclude="seen")
        for device in ("cuda", "cpu")
    )
    assert torch.equal(there.items.cpu(), here.items)
    assert no_waiting
