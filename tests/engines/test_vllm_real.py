"""The vLLM adapter inside a real vLLM on the CPU: `make test-engines`. What cannot run here is in `test_vllm.py`.

One engine for all: a tiny Llama over semantic ids, room for five requests at once, prompts read in pieces, and so few blocks
for keys and values that requests are pre-empted. It runs the V1 runner; the V2 runner needs a GPU.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

from spdd.catalog import Catalog
from spdd.engines import request
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # vLLM's own warnings are not ours to settle
]

POLICIES = [
    {"spdd_slots": 6, "spdd_objectives": "new>=3"},
    {"spdd": {"slots": 4, "objectives": [{"name": "new", "at_least": 2, "at_most": 2}]}},
    {"spdd": json.dumps({"decoder": "greedy", "slots": 5}), "spdd_exclude": [5, 6, 7]},
    {"spdd_decoder": "must-fill", "spdd_slots": 5, "spdd_objectives": ["new>=1", "dear>=2.5"]},
    {"spdd_slots": 6, "spdd_objectives": "dear>=4", "spdd_settings": ["rate=0.3", "start=2"]},
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A model and its menu on disk, and the environment of a server."""
    from spdd.models.lmrec import small_llama

    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    ids = rng.choice(16**3, 300, replace=False)
    catalog = Catalog.of(np.stack([ids // 256, ids // 16 % 16, ids % 16], 1), sizes=[16, 16, 16])
    model = small_llama(catalog, width=64, layers=2, heads=2)
    with torch.no_grad():  # a model that was never taught says the same all the time
        for weight in model.lm.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    model.lm.save_pretrained(folder / "model")
    menu = Menu.of(catalog, first=2, columns={"new": rng.random(300) < 0.1, "dear": rng.random(300)})
    menu.save(folder / "menu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(request.MENU, str(folder / "menu"))
        patch.delenv(request.POLICY, raising=False)
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the server below has processes enough
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder, model.lm, Menu.load(folder / "menu")


SETTINGS = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 96,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 16,
    "block_size": 32,
    "num_gpu_blocks_override": 8,
    "enable_prefix_caching": False,
}


@pytest.fixture(scope="module")
def engine(shop):
    from vllm import LLM

    return LLM(model=str(shop[0] / "model"), disable_log_stats=False, **SETTINGS)


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [[0, *rng.integers(2, 50, rng.integers(3, 30)).tolist()] for _ in range(count)]


def ask(extra=None, **more):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    length = request.max_tokens(extra) if extra else 18
    return SamplingParams(
        output_kind=RequestOutputKind.FINAL_ONLY,
        **{"temperature": 0, "max_tokens": length, "ignore_eos": True, "detokenize": False, "extra_args": extra} | more,
    )


def refusal():
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError


def run(engine, arrivals):
    """Tokens of each output of each request. arrivals: (step at which it arrives, prompt, params), sorted"""
    core, waiting, found, step = engine.llm_engine, list(enumerate(arrivals)), {}, 0
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][1][0] <= step:
            number, (_, prompt, params) = waiting.pop(0)
            core.add_request(str(number), {"prompt_token_ids": prompt}, params)
        for output in core.step():
            if output.finished:
                found[int(output.request_id)] = [list(x.token_ids) for x in output.outputs]
        step += 1
    return [found[number] for number in range(len(arrivals))]


def policy_of(extra):
    return request.asked(extra).plan, [extra.get("spdd_exclude", [])]


def test_many_policies_in_one_batch_equal_transformers_and_our_loop(engine, shop):
    """Requests arrive and leave at different times, are read in pieces and pre-empted; among them some without a policy."""
    from spdd.engines.transformers import SlateProcessor, generate

    _, lm, menu = shop
    given = [(2 * n, prompt, [*POLICIES, None][n % 6]) for n, prompt in enumerate(prompts(18))]
    found = run(engine, [(step, prompt, ask(extra)) for step, prompt, extra in given])
    preempted = next(m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions")
    assert preempted > 0, "the engine never pre-empted: give it fewer blocks"
    for (_, prompt, extra), (tokens,) in zip(given, found, strict=True):
        ids = torch.tensor([prompt])
        if extra is None:
            plain = lm.generate(ids, max_new_tokens=18, do_sample=False)
            assert tokens == plain[0, len(prompt) :].tolist()
            continue
        plan, exclude = policy_of(extra)
        plan = Plan.of(menu, plan.decoder)
        same = lm.generate(
            ids,
            max_new_tokens=plan.tokens,
            do_sample=False,
            logits_processor=[SlateProcessor(plan, len(prompt), exclude=exclude)],
        )
        assert tokens == same[0, len(prompt) :].tolist()
        ours = generate(lm, ids, plan, menu=menu, exclude=exclude)
        slate = request.slates([tokens], extra)
        assert slate.items.tolist() == ours.items.tolist()
        assert slate.status.tolist() == [0]
        items = slate.items[0].tolist()
        assert len(set(items)) == len(items)
        assert not set(items) & set(extra.get("spdd_exclude", []))


def test_several_samples_of_one_request_are_several_slates(engine):
    extra = POLICIES[0]
    (found,) = run(engine, [(0, prompts(1)[0], ask(extra, n=6, temperature=2.0, top_p=0.95, top_k=20))])
    slates = request.slates(found, extra)
    assert slates.status.tolist() == [0] * 6
    assert (slates.gained[:, 0] >= 3).all()
    assert len({tuple(row) for row in slates.items.tolist()}) > 1
    assert all(len(set(row)) == len(row) for row in slates.items.tolist())


def test_bad_policies_are_refused_while_others_go_on(engine):
    good = ask(POLICIES[0])
    alone = run(engine, [(0, prompts(1)[0], good)])
    core = engine.llm_engine
    core.add_request("good", {"prompt_token_ids": prompts(1)[0]}, good)
    core.step()
    bad = [
        ({"spdd_objectives": "nwe>=1"}, {}, "needs the column 'nwe'"),
        ({"spdd_slots": 5, "spdd_objectives": "dear>=5.1"}, {}, "can keep what is asked: 'dear' at least 5.1"),
        ({"spdd_slots": 5}, {"max_tokens": 12}, "`max_tokens` must be at least 15"),
        ({"spdd_slot": 5}, {}, "'spdd_slot' must be one of"),
        ({"spdd_slots": 5, "spdd_exclude": [300]}, {}, "items from 0 to 299"),
        ({"spdd_slots": 5}, {"allowed_token_ids": [3]}, "`allowed_token_ids` must not be given"),
    ]
    for number, (extra, more, message) in enumerate(bad):
        with pytest.raises(refusal(), match=message):
            core.add_request(f"bad {number}", {"prompt_token_ids": [0, 5]}, ask(None, extra_args=extra, **more))
    found = []
    while core.has_unfinished_requests():
        found += [list(x.outputs[0].token_ids) for x in core.step() if x.finished]
    assert found == alone[0]


def test_a_menu_of_another_model_is_refused(engine, tmp_path, monkeypatch):
    Menu.of(Catalog.of([[0, 1], [1, 60]]), first=2).save(tmp_path / "menu")
    monkeypatch.setenv(request.MENU, str(tmp_path / "menu"))
    with pytest.raises(refusal(), match="a vocabulary of at least 65 tokens, but the model's has 50"):
        engine.llm_engine.add_request("x", {"prompt_token_ids": [0, 5]}, ask({"spdd_slots": 1}))


def test_beam_search_of_vllm_itself_knows_no_policy(engine, monkeypatch, tmp_path):
    """It hands on no settings; where a policy is the engine's default, that would be one slate per token."""
    from vllm.sampling_params import BeamSearchParams

    assert not hasattr(BeamSearchParams(beam_width=2, max_tokens=6), "extra_args")
    (tmp_path / "policy.toml").write_text("slots = 2")
    monkeypatch.setenv(request.POLICY, str(tmp_path / "policy.toml"))
    with pytest.raises(refusal(), match=r"`max_tokens` must be at least 6.*vLLM's own beam search"):
        engine.llm_engine.add_request("x", {"prompt_token_ids": [0, 5]}, ask(None, max_tokens=1))


# ---- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(shop, tmp_path_factory):
    """`vllm serve`, with a policy for requests that say nothing."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "policy.toml").write_text('slots = 2\nobjectives = [{name = "new", at_least = 1}]')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in SETTINGS.items()
        if value is not False
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "vllm.entrypoints.cli.main",
                "serve",
                str(shop[0] / "model"),
                f"--port={port}",
                *flags,
            ],
            env={**os.environ, request.POLICY: str(folder / "policy.toml"), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 900
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((folder / "log").read_text()[-5000:]) from None
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", str(shop[0] / "model")
    finally:
        process.terminate()
        process.wait(60)


def post(server, body):
    url, model = server
    body = {"model": model, "temperature": 0, "return_token_ids": True, "ignore_eos": True} | body
    asked = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_policies_over_http(server, shop):
    prompt = prompts(1)[0]
    extra = {"spdd_slots": 3, "spdd_objectives": ["new>=2"], "spdd_exclude": [1, 2]}
    status, answer = post(server, {"prompt": prompt, "max_tokens": 9, "vllm_xargs": extra})
    assert status == 200, answer
    plan, exclude = policy_of(extra)
    from spdd.engines.transformers import generate

    ours = generate(shop[1], torch.tensor([prompt]), plan, menu=plan.menu, exclude=exclude)
    assert request.slates([answer["choices"][0]["token_ids"]], extra).items.tolist() == ours.items.tolist()

    status, answer = post(server, {"prompt": prompt, "max_tokens": 6})  # the engine's own
    assert status == 200, answer
    found = request.slates([answer["choices"][0]["token_ids"]], {"spdd_slots": 2, "spdd_objectives": "new>=1"})
    assert found.status.tolist() == [0]

    status, answer = post(server, {"prompt": prompt, "max_tokens": 5, "vllm_xargs": {"spdd": "off"}})
    assert status == 200, answer
    plain = shop[1].generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
    assert answer["choices"][0]["token_ids"] == plain[0, len(prompt) :].tolist()

    for extra, message in (
        ({"spdd_objectives": "nwe>=1"}, "needs the column 'nwe'"),
        ({"spdd_slots": 3}, "`max_tokens`"),
    ):
        status, answer = post(server, {"prompt": prompt, "max_tokens": 6, "vllm_xargs": extra})
        assert status == 400
        assert message in answer["error"]["message"]
