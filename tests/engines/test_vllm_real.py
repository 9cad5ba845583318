"""The vLLM adapter inside a real vLLM on the CPU: `make test-engines`. What cannot run here is in `test_vllm.py`.

One engine for all: a tiny Llama over semantic ids, room for five requests at once, prompts read in pieces, and so few blocks
for keys and values that requests are pre-empted. It runs the V1 runner; the V2 runner needs a GPU.

A process of its own: on a CPU vLLM 0.32 looks through every module that is loaded (`register_kernels`), and llvmlite's
`ffi.lib`, which has every attribute it is asked for, breaks that. So the engine starts before numba is loaded, or not at all.
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

import spdd
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
    columns = {"new": rng.random(300) < 0.1, "old": rng.random(300) < 0.5, "dear": rng.random(300)}
    menu = Menu.of(catalog, first=2, columns=columns)
    menu.save(folder / "menu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(request.MENU, str(folder / "menu"))
        patch.delenv(request.POLICY, raising=False)
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the server below has processes enough
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder, model, Menu.load(folder / "menu")


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
    if "llvmlite" in sys.modules:
        pytest.fail("numba is loaded, and vLLM cannot start any more: run this file in a process of its own.")
    from vllm import LLM

    return LLM(model=str(shop[0] / "model"), disable_log_stats=False, **SETTINGS)


def histories(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 300, rng.integers(1, 10)).tolist() for _ in range(count)]


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [[0, *rng.integers(2, 50, rng.integers(3, 30)).tolist()] for _ in range(count)]


def metric(engine, name):
    return next(m.value for m in engine.get_metrics() if m.name == f"vllm:{name}")


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


def run(engine, arrivals, watch=lambda: None):
    """Tokens of each output of each request. arrivals: (step at which it arrives, prompt, params), sorted"""
    core, waiting, found, step = engine.llm_engine, list(enumerate(arrivals)), {}, 0
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][1][0] <= step:
            number, (_, prompt, params) = waiting.pop(0)
            core.add_request(str(number), {"prompt_token_ids": prompt}, params)
        for output in core.step():
            if output.finished:
                found[int(output.request_id)] = [list(x.token_ids) for x in output.outputs]
        watch()
        step += 1
    return [found[number] for number in range(len(arrivals))]


def policy_of(extra):
    return request.asked(extra).plan, [extra.get("spdd_exclude", [])]


def test_one_slate_from_our_own_loop_transformers_and_vllm(engine, shop):
    """Four roads, several policies in one batch: our own loop over the recommender, transformers' greedy loop through the
    processor, our loop inside `generate`, vLLM. With beams there are two of them."""
    from spdd.engines.transformers import SlateProcessor, generate

    _, model, menu = shop
    new, old = (torch.from_numpy(menu.column(name)) for name in ("new", "old"))
    same = [  # as a request says it, as a program says it
        (POLICIES[0], spdd.SPDD([spdd.Objective("new", new, at_least=3)], slots=6)),
        (POLICIES[1], spdd.SPDD([spdd.Objective("new", new, at_least=2, at_most=2)], slots=4)),
        ({"spdd_decoder": "greedy", "spdd_slots": 5}, spdd.Greedy(slots=5)),
        (
            {"spdd_slots": 5, "spdd_objectives": ["new>=1", "old<=2"], "spdd_settings": ["start=1"]},
            spdd.SPDD(
                [spdd.Objective("new", new, at_least=1), spdd.Objective("old", old, at_most=2)], slots=5, start=1.0
            ),
        ),
        (
            {"spdd_decoder": "must-fill", "spdd_slots": 6, "spdd_objectives": "old<=1"},
            spdd.MustFill([spdd.Objective("old", old, at_most=1)], slots=6),
        ),
    ]
    asked = [(history, *same[n % 5]) for n, history in enumerate(histories(10, seed=4))]
    spelled = [[0, *menu.spell(history).ravel().tolist()] for history, _, _ in asked]
    found = run(engine, [(3 * n, spelled[n], ask(extra)) for n, (_, extra, _) in enumerate(asked)])
    inside = generate(model, [history for history, _, _ in asked], [decoder for _, _, decoder in asked], menu=menu)
    distinct = set()
    for (history, extra, decoder), prompt, (tokens,), slate in zip(asked, spelled, found, inside, strict=True):
        model.beams = 1
        own = decoder.generate(model, [history]).items.tolist()
        plan = Plan.of(menu, request.asked(extra).plan.decoder)
        processor = SlateProcessor(plan, len(prompt))
        say = {"max_new_tokens": plan.tokens, "do_sample": False, "logits_processor": [processor]}
        assert request.slates([tokens], extra).items.tolist() == own
        assert processor.slates(model.lm.generate(torch.tensor([prompt]), **say)).items.tolist() == own
        assert slate.items.tolist() == own
        distinct.add(tuple(own[0]))
        model.beams = 4
        wide = decoder.generate(model, [history]).items.tolist()
        assert generate(model, [history], decoder, menu=menu, beams=4).items.tolist() == wide
    assert len(distinct) == 10


def test_many_policies_in_one_batch_equal_transformers_and_our_loop(engine, shop):
    """Requests arrive and leave at different times, are read in pieces and pre-empted; among them some without a policy."""
    from spdd.engines.transformers import SlateProcessor, generate

    lm, menu = shop[1].lm, shop[2]
    given = [(2 * n, prompt, [*POLICIES, None][n % 6]) for n, prompt in enumerate(prompts(18))]
    before, running = metric(engine, "num_preemptions"), []
    found = run(
        engine,
        [(step, prompt, ask(extra)) for step, prompt, extra in given],
        watch=lambda: running.append(metric(engine, "num_requests_running")),
    )
    assert metric(engine, "num_preemptions") > before, "the engine never pre-empted: give it fewer blocks"
    assert max(running) >= 3, "requests never stood beside each other"
    assert len(set(running)) > 2, "requests never came or left while others went on"
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


def test_other_values_while_serving(engine, shop, monkeypatch, tmp_path):
    """A menu is replaced under a running engine: who began goes on with the old values, who comes has the new ones."""
    menu, path = shop[2], tmp_path / "menu"
    menu.save(path)
    monkeypatch.setenv(request.MENU, str(path))
    extra, prompt = POLICIES[0], prompts(1, seed=9)[0]
    turned = menu.with_columns({"new": 1 - menu.column("new")})
    core, found = engine.llm_engine, {}
    core.add_request("old", {"prompt_token_ids": prompt}, ask(extra))
    for _ in range(7):
        core.step()
    turned.save(path)
    core.add_request("new", {"prompt_token_ids": prompt}, ask(extra))
    while core.has_unfinished_requests():
        found |= {x.request_id: list(x.outputs[0].token_ids) for x in core.step() if x.finished}
    from spdd.engines.transformers import generate

    for name, which in (("old", menu), ("new", turned)):
        plan = Plan.of(which, {"slots": 6, "objectives": [{"name": "new", "at_least": 3}]})
        ours = generate(shop[1].lm, torch.tensor([prompt]), plan, menu=which)
        assert found[name] == which.spell(ours.items[0]).ravel().tolist()
    assert found["old"] != found["new"]


def test_a_menu_of_another_model_is_refused(engine, tmp_path, monkeypatch):
    assert hasattr(engine.llm_engine.input_processor, "tokenizer")  # held against the menu's names, where there is one
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
    """vLLM's HTTP server, with a policy for requests that say nothing.

    By its module: the command `vllm` asks for a distribution named "vllm", and the build for CPUs is named "vllm-cpu".
    """
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
    module = "vllm.entrypoints.openai.api_server"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, f"--model={shop[0] / 'model'}", f"--port={port}", *flags],
            env={**os.environ, request.POLICY: str(folder / "policy.toml"), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 600
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

    ours = generate(shop[1].lm, torch.tensor([prompt]), plan, menu=plan.menu, exclude=exclude)
    assert request.slates([answer["choices"][0]["token_ids"]], extra).items.tolist() == ours.items.tolist()

    status, answer = post(server, {"prompt": prompt, "max_tokens": 6})  # the engine's own
    assert status == 200, answer
    found = request.slates([answer["choices"][0]["token_ids"]], {"spdd_slots": 2, "spdd_objectives": "new>=1"})
    assert found.status.tolist() == [0]

    status, answer = post(server, {"prompt": prompt, "max_tokens": 5, "vllm_xargs": {"spdd": "off"}})
    assert status == 200, answer
    plain = shop[1].lm.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
    assert answer["choices"][0]["token_ids"] == plain[0, len(prompt) :].tolist()

    for extra, message in (
        ({"spdd_objectives": "nwe>=1"}, "needs the column 'nwe'"),
        ({"spdd_slots": 3}, "`max_tokens`"),
    ):
        status, answer = post(server, {"prompt": prompt, "max_tokens": 6, "vllm_xargs": extra})
        assert status == 400
        assert message in answer["error"]["message"]
    status, answer = post(server, {"prompt": prompt, "max_tokens": 6, "n": 3, "temperature": 1.5})
    # The server goes on, and draws several slates for one request. No seed: on a CPU vLLM 0.32 dies of one beside chunked prefill.
    assert status == 200, answer
    drawn = request.slates(
        [choice["token_ids"] for choice in answer["choices"]], {"spdd_slots": 2, "spdd_objectives": "new>=1"}
    )
    assert drawn.status.tolist() == [0] * 3
