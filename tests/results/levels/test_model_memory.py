"""Memory of models by formula, against torch's own count of Hugging Face's modules at real sizes on tensors without
data, and against arithmetic."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from results import levels
from results.files import journal, library
from results.implementations import facts_of
from results.levels import model_memory
from results.levels.memory import WorkspaceLaw
from results.levels.model_table import model, models
from results.records import Case
from tests.cases import cases

GIB = 1024.0
LINEAR, NAIVE = facts_of("triton_fa2").memory, facts_of("torch_naive").memory
LLAMA = Case(**cases(__file__, "LLAMA"))


def without_data(case: Case, attention: str, *, training: bool) -> Any:
    """Return transformers' module of a case around an attention; called where tensors have no data."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    inside = pytest.importorskip("kernels.models")
    from kernels.attention.torch_naive import attention as naive

    def attend(module, q, k, v, mask, scaling=None, **options):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        out = naive(q, k, v, causal=True) if attention == "naive" else sdpa(q, k, v, is_causal=True)
        return out.transpose(1, 2), None

    transformers.AttentionInterface.register("plain", attend)
    config = model(case.subject)
    family = config.architecture.family
    fields = inside.config_of(asdict(config), case.num_layers or config.layers)
    made = transformers.AutoConfig.for_model(family, **fields)
    module = transformers.AutoModelForCausalLM.from_config(made, dtype=getattr(torch, case.dtype))
    module.tie_weights()
    module.config._attn_implementation = "plain"
    if case.checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    return module.train(training)


def counted(case: Case, attention: str, *, training: bool) -> float:
    """Return the peak in MiB that torch counts for a call of a model, after its first step; nothing is computed."""
    torch = pytest.importorskip("torch")
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()
    loss_of = pytest.importorskip("kernels.models").loss_of
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(training):
        module = without_data(case, attention, training=training)
        tokens = torch.zeros(case.batch, case.seqlen_k, dtype=torch.int64)
        optimizers = [torch.optim.AdamW(module.parameters(), fused=True)] if training else []
        for optimizer in optimizers:  # a first step makes its states
            for parameter in module.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        tracker.track_external(module, *optimizers)
        with tracker:
            if training:
                loss_of(module(input_ids=tokens, use_cache=False).logits, tokens).backward()
                optimizers[0].step()
            else:
                module(input_ids=tokens, use_cache=True, logits_to_keep=1)
    return max(found["Total"] for found in tracker.get_tracker_snapshot("peak").values()) / 2**20


CUT = {  # without grouped key heads, which SDPA on tensors without data repeats
    "gpt2-tiny": {"batch": 4, "seqlen": 512},
    "gpt2": {"batch": 4, "seqlen": 1024, "num_layers": 4},
    "llama2-7b": {"batch": 2, "seqlen": 2048, "num_layers": 3},
    "gpt-neox-20b": {"batch": 2, "seqlen": 2048, "num_layers": 3},
    "gemma-7b": {"batch": 2, "seqlen": 2048, "num_layers": 2},
    "qwen3-8b": {"batch": 2, "seqlen": 2048, "num_layers": 2},
}


@pytest.fixture(autouse=True)
def ungrouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models(), "qwen3-8b", replace(model("qwen3-8b"), kv_heads=32))


def cut(name: str, **changes) -> Case:
    sizes = dict(CUT[name])
    seqlen = sizes.pop("seqlen")
    return replace(LLAMA, subject=name, seqlen_q=seqlen, seqlen_k=seqlen, **sizes, **changes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", CUT)
def test_training_memory_is_torchs_count_to_within_five_percent(name, checkpointing):
    case = cut(name, checkpointing=checkpointing)
    assert levels.memory_mb(case, LINEAR, "train") == pytest.approx(counted(case, "sdpa", training=True), rel=0.05)


@pytest.mark.parametrize("name", CUT)
def test_prefill_memory_is_torchs_count_to_within_five_percent(name):
    case = cut(name)
    assert levels.memory_mb(case, LINEAR, "prefill") == pytest.approx(counted(case, "sdpa", training=False), rel=0.05)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama2-7b"])
def test_score_matrices_are_torchs_count_to_within_five_percent(name, training):
    case, mode = cut(name), "train" if training else "prefill"
    assert levels.memory_mb(case, NAIVE, mode) == pytest.approx(counted(case, "naive", training=training), rel=0.05)


def test_a_compiled_layer_keeps_less_and_a_case_that_leaves_its_batch_or_dtype_open_has_no_memory():
    eager, compiled = (levels.memory_parts(replace(LLAMA, compiled=kind), LINEAR, "train") for kind in (False, True))
    assert compiled.workspace < 0.8 * eager.workspace
    assert levels.memory_mb(replace(LLAMA, batch=None), LINEAR, "train") is None
    assert levels.memory_mb(replace(LLAMA, dtype=None), LINEAR, "decode") is None
    assert levels.memory_mb(replace(LLAMA, subject="llama4"), LINEAR, "decode") is None


def test_a_cache_grows_by_the_bytes_of_its_tokens_up_to_its_window_and_keeps_latents_where_that_is_said():
    config, fields = model("llama3-8b"), {"dtype": "bfloat16", "window_size": 0}
    assert model_memory.cache_bytes(fields, config, 2, 32768) == 2 * 32768 * 128 * 1024
    assert model_memory.cache_bytes({**fields, "cache_dtype": "float8_e4m3fn"}, config, 1, 1) == 64 * 1024
    mistral, fields = model("mistral-7b"), {"dtype": "bfloat16"}
    of_window = model_memory.cache_bytes(fields, mistral, 1, 4096)
    assert model_memory.cache_bytes(fields, mistral, 1, 32768) == of_window
    assert model_memory.cache_bytes({**fields, "window_size": 0}, mistral, 1, 32768) == 8 * of_window
    config = model("deepseek-v2-lite")
    expanded = model_memory.cache_bytes({"dtype": "bfloat16", "latent_dim": 0}, config, 1, 1)
    latent = model_memory.cache_bytes({"dtype": "bfloat16", "latent_dim": 512}, config, 1, 1)
    assert latent / 1024 == pytest.approx(30.4, abs=0.05)
    assert expanded / latent == pytest.approx(16 * 320 / 576)


@pytest.mark.parametrize(("optimizer", "gib"), [("sgd", 25.1), ("adamw_bf16", 50.2), ("adamw_fp32_master", 100.4)])
def test_training_states_of_seven_billion_parameters(optimizer, gib):
    moments = model_memory.training_moments(
        {**vars(LLAMA), "optimizer": optimizer}, model("llama2-7b"), WorkspaceLaw(numbers=2)
    )
    assert moments[-1].moment == "at the step"
    assert moments[-1].peak / GIB == pytest.approx(gib, abs=0.05)


def test_the_longest_context_is_that_of_the_memory_and_shorter_with_a_score_matrix():
    decoding = replace(LLAMA, seqlen_q=1, seqlen_k=32768)
    assert levels.memory_mb(decoding, LINEAR, "decode") / GIB == pytest.approx(28.6, abs=0.1)
    assert 16384 < levels.largest_seqlen(decoding, LINEAR, "decode", 24 * GIB) < 32768
    with_matrix = levels.largest_seqlen(LLAMA, NAIVE, "prefill", 24 * GIB)
    assert with_matrix < levels.largest_seqlen(LLAMA, LINEAR, "prefill", 24 * GIB) / 1.5


def test_measured_peaks_of_the_shipped_models_are_within_five_percent():
    """Hold the formula against torch's allocator on the GPUs of the runs that ship."""
    apart = {}
    for folder in journal.published_folders():
        run = folder.run()
        if run.source != "shipped" or run.sweep.get("level") != "model":
            continue
        for m in library.read(folder)[1]:
            law = facts_of(m.implementation, run.implementations).memory
            formula = levels.memory_mb(m.case, law, m.mode)
            if m.metric == "peak_memory_mb" and m.value and formula and m.mode in ("decode", "prefill", "train"):
                apart[run.run_id, levels.level_of(m.case).short(m.case), m.implementation, m.mode] = m.value / formula
    if not apart:
        pytest.skip("no run of whole models ships yet")
    assert {case: ratio for case, ratio in apart.items() if abs(ratio - 1) > 0.05} == {}
