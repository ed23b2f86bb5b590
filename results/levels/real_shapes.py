"""Attention shapes of existing models, each with its model, its layer and the source of its sizes.

A case has no label. `shape_of` finds the model by the sizes, so that runs of all sweeps and of other tools show it too.
Sizes of language models come from each `config.json`, as repeated in litgpt's litgpt/config.py with the same URL; other
sizes come from the given URLs. Batches and prompt lengths are our choice within the limits of the model. Lengths of
images, audio and text conditions follow from the configuration. Additions to the scores (softcap, sinks, relative
positions, pair bias) are left out and mentioned in the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

from results.levels.tensors import Fields
from results.records import Case, attention_case

_HUB = "https://huggingface.co/"
_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/"
_SD_15 = "https://github.com/CompVis/stable-diffusion/blob/main/configs/stable-diffusion/v1-inference.yaml"
_SGM = "https://github.com/Stability-AI/generative-models/blob/main/configs/inference/"
_OPENFOLD = "https://github.com/aqlaboratory/openfold/blob/main/openfold/config.py"
_SAM = "https://github.com/facebookresearch/segment-anything/blob/main/segment_anything/build_sam.py"
_DINO = "https://github.com/facebookresearch/dinov2/blob/main/dinov2/models/vision_transformer.py"
_BIG_VISION = "https://github.com/google-research/big_vision/blob/main/big_vision/models/vit.py"
_WAN = "https://github.com/Wan-Video/Wan2.1/blob/main/wan/configs/"
_FLUX = "https://github.com/black-forest-labs/flux/blob/main/src/flux/util.py"
_COG = "https://github.com/zai-org/CogVideo/blob/main/sat/configs/cogvideox_2b.yaml"
_PIXART = "https://github.com/PixArt-alpha/PixArt-sigma/blob/master/diffusion/model/nets/PixArtMS.py"
_IP_ADAPTER = "https://github.com/tencent-ailab/IP-Adapter/blob/main/ip_adapter/ip_adapter.py"
_SD3 = "https://huggingface.co/stabilityai/stable-diffusion-3-medium-diffusers/blob/main/transformer/config.json"
_DEEPSEEK = "https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/configs/config_671B.json"
NO_MODEL = "No model: the end of the scale between grouped and shared key heads."

_IDENTITY = (
    "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "causal", "window_size",
)  # fmt: skip


class LayerUse(NamedTuple):
    """One use of a layer: which, and the sizes of the call."""

    layer: str  # without a comma, as it is chosen by
    batch: int
    queries: int
    keys: int
    causal: bool = False


@dataclass(frozen=True)
class ModelAttention:
    """Heads of one width in a model, and the calls made of them."""

    domain: str
    model: str
    source: str  # URL of the configuration, or NO_MODEL
    heads: tuple[int, int]  # query heads, key heads
    head_dim: int
    uses: tuple[LayerUse, ...]
    head_dim_v: int = 0  # 0: head_dim
    window_size: int = 0


@dataclass(frozen=True)
class RealShape:
    """A shape of attention in a model."""

    domain: str
    name: str  # model: layer
    source: str
    case: Case  # in bfloat16

    def in_dtype(self, dtype: str) -> Case:
        """Return the case of this shape in a dtype."""
        fields = {name: getattr(self.case, name) for name in _IDENTITY if name != "seqlen_q"}
        return attention_case(seqlen=self.case.seqlen_q, dtype=dtype, **fields)


def _hub(name: str) -> str:
    return f"{_HUB}{name}/blob/main/config.json"


def _code(name: str) -> str:
    """Return where transformers has the sizes of a family's first model as defaults."""
    return f"{_TRANSFORMERS}{name}/configuration_{name}.py"


def _attention(
    domain: str, model: str, source: str, heads: tuple[int, int] | int, head_dim: int, *uses: LayerUse, **more: int
) -> ModelAttention:
    pair = (heads, heads) if isinstance(heads, int) else heads
    return ModelAttention(domain, model, source, pair, head_dim, uses, **more)


_language = partial(_attention, "language")
_vision = partial(_attention, "vision")
_image = partial(_attention, "image")
_video = partial(_attention, "video")
_speech = partial(_attention, "speech")
_protein = partial(_attention, "protein")


def _prefill(tokens: int, batch: int = 1, layer: str = "prefill") -> LayerUse:
    return LayerUse(f"{layer} of {tokens} tokens", batch, tokens, tokens, True)


def _chunk(queries: int, keys: int) -> LayerUse:
    return LayerUse(f"chunked prefill: {queries} tokens on {keys}", 1, queries, keys, True)


def _train(batch: int, tokens: int) -> LayerUse:
    return _prefill(tokens, batch, "training")


_LANGUAGE = (
    _language("Llama 2 7B", _hub("meta-llama/Llama-2-7b-hf"), 32, 128, _train(2, 4096)),
    _language("Llama 2 70B", _hub("meta-llama/Llama-2-70b-hf"), (64, 8), 128, _prefill(4096)),
    _language(
        *("Llama 3 8B", _hub("meta-llama/Meta-Llama-3-8B"), (32, 8), 128),
        *(_prefill(8192), _prefill(1531), _chunk(512, 8192), _train(2, 8192)),
    ),
    _language(
        "Llama 3.1 405B", _hub("meta-llama/Meta-Llama-3.1-405B"), (128, 8), 128, _prefill(4096), _chunk(256, 32768)
    ),
    _language(
        *("Mistral 7B", _hub("mistralai/Mistral-7B-v0.1"), (32, 8), 128, _prefill(16384), _chunk(512, 16384)),
        window_size=4096,
    ),
    _language("Qwen2.5 7B", _hub("Qwen/Qwen2.5-7B"), (28, 4), 128, _prefill(16384), _chunk(300, 32768)),
    _language("Qwen2.5 0.5B", _hub("Qwen/Qwen2.5-0.5B"), (14, 2), 64, _train(8, 2048)),
    _language("Qwen3 30B-A3B", _hub("Qwen/Qwen3-30B-A3B"), (32, 4), 128, _train(1, 4096)),
    _language("Gemma 2B", _hub("google/gemma-2b"), (8, 1), 256, _train(4, 2048), _prefill(8192)),
    _language("Gemma 7B", _hub("google/gemma-7b"), 16, 256, _prefill(8192)),
    _language("Gemma 2 9B without softcap", _hub("google/gemma-2-9b"), (16, 8), 256, _prefill(8192), window_size=4096),
    _language("Gemma 3 27B", _hub("google/gemma-3-27b-it"), (32, 16), 128, _prefill(8192), window_size=1024),
    _language("GPT-2", _hub("openai-community/gpt2"), 12, 64, _train(12, 1024)),
    _language("GPT-2 XL", _hub("openai-community/gpt2-xl"), 25, 64, _train(4, 1024)),
    _language("GPT-J 6B", _hub("EleutherAI/gpt-j-6b"), 16, 256, _train(2, 2048)),
    _language("GPT-NeoX 20B", _hub("EleutherAI/gpt-neox-20b"), 64, 96, _train(1, 2048)),
    _language("Falcon 7B", _hub("tiiuae/falcon-7b"), (71, 1), 64, _train(2, 2048), _chunk(256, 2048)),
    _language("Falcon 40B", _hub("tiiuae/falcon-40b"), (128, 8), 64, _prefill(2048)),
    _language("StarCoder", _hub("bigcode/starcoder"), (48, 1), 128, _prefill(8192), _chunk(256, 8192)),
    _language("Multi-query limit", NO_MODEL, (128, 1), 128, _prefill(2048)),
    _language("GPT-OSS without sinks", _code("gpt_oss"), (64, 8), 64, _prefill(4096)),
    _language(
        *("GPT-OSS without sinks", _code("gpt_oss"), (64, 8), 64, _prefill(8192)),
        window_size=128,
    ),
    _language("Phi-2", _hub("microsoft/phi-2"), 32, 80, _train(4, 2048)),
    _language("Phi-3 mini", _hub("microsoft/Phi-3-mini-4k-instruct"), 32, 96, _prefill(4000)),
    _language("OpenLLaMA 3B", _hub("openlm-research/open_llama_3b"), 32, 100, _train(4, 2048)),
    _language("DeepSeek-V3", _DEEPSEEK, 128, 192, _prefill(2048), _chunk(512, 8192), head_dim_v=128),
    _language("DeepSeek-V2 Lite", _hub("deepseek-ai/DeepSeek-V2-Lite"), 16, 192, _train(2, 4096), head_dim_v=128),
    _language(
        *("BERT base", _code("bert"), 12, 64),
        LayerUse("training of 512 tokens", 32, 512, 512),
    ),
)


_VISION = (
    _vision("ViT-B/16", _code("vit"), 12, 64, LayerUse("224 px", 64, 197, 197)),
    _vision("CLIP ViT-B/32", _code("clip"), 12, 64, LayerUse("image at 224 px", 256, 50, 50)),
    _vision("CLIP ViT-B/32", _code("clip"), 8, 64, LayerUse("text", 256, 77, 77, True)),
    _vision("SAM ViT-B without relative positions", _SAM, 12, 64, LayerUse("global layer at 1024 px", 1, 4096, 4096)),
    _vision(
        *("SAM ViT-H without relative positions", _SAM, 16, 80, LayerUse("global layer at 1024 px", 1, 4096, 4096)),
        LayerUse("25 windows of 14 x 14", 25, 196, 196),
    ),
    _vision("DINOv2 ViT-B/14", _DINO, 12, 64, LayerUse("224 px", 64, 257, 257)),
    _vision("DINOv2 ViT-g/14", _DINO, 24, 64, LayerUse("518 px", 8, 1370, 1370)),
    _vision(
        *("SigLIP So400m/14", _BIG_VISION, 16, 72, LayerUse("384 px", 16, 729, 729)),
        LayerUse("pooling: 1 query on the patches", 16, 1, 729),
    ),
    _vision("BLIP-2 ViT-g/14", _code("blip_2"), 16, 88, LayerUse("224 px", 8, 257, 257)),
    _vision("BLIP-2 Q-Former", _code("blip_2"), 12, 64, LayerUse("32 queries on the image", 32, 32, 257)),
    _vision(
        *("DETR", _code("detr"), 8, 32, LayerUse("encoder at 800 x 1066 px", 8, 850, 850)),
        LayerUse("100 queries on the image", 8, 100, 850),
    ),
    _vision("SegFormer B0", _code("segformer"), 1, 32, LayerUse("first stage at 512 px", 4, 16384, 256)),
    _vision("SegFormer B0", _code("segformer"), 5, 32, LayerUse("third stage at 512 px", 4, 1024, 256)),
    _vision(
        *("Idefics2 resampler", _code("idefics2"), (16, 4), 96),
        LayerUse("64 latents on 980 px and themselves", 4, 64, 4964),
    ),
)


def _unet(model: str, source: str, heads: int, head_dim: int, *sides: int) -> ModelAttention:
    """Return self-attention over a feature map of each side, and attention to 77 tokens; guided, so of two images."""
    both = (
        (
            LayerUse(f"self-attention at {side} x {side}", 2, side * side, side * side),
            LayerUse(f"text at {side} x {side}", 2, side * side, 77),
        )
        for side in sides
    )
    return _image(model, source, heads, head_dim, *chain.from_iterable(both))


_IMAGE = (
    _unet("Stable Diffusion 1.5", _SD_15, 8, 40, 64),
    _unet("Stable Diffusion 1.5", _SD_15, 8, 80, 32),
    _unet("Stable Diffusion 1.5", _SD_15, 8, 160, 16),
    _unet("Stable Diffusion 2.1", f"{_SGM}sd_2_1_768.yaml", 5, 64, 96),
    _unet("Stable Diffusion XL", f"{_SGM}sd_xl_base.yaml", 10, 64, 64),
    _unet("Stable Diffusion XL", f"{_SGM}sd_xl_base.yaml", 20, 64, 32),
    _image("IP-Adapter of Stable Diffusion XL", _IP_ADAPTER, 10, 64, LayerUse("4 image tokens", 2, 4096, 4)),
    _image(
        *("PixArt-Sigma", _PIXART, 16, 72, LayerUse("self-attention at 1024 px", 2, 4096, 4096)),
        LayerUse("300 text tokens at 1024 px", 2, 4096, 300),
    ),
    _image("Stable Diffusion 3 medium", _SD3, 24, 64, LayerUse("image and text at 1024 px", 2, 4429, 4429)),
    _image("FLUX.1 dev", _FLUX, 24, 128, LayerUse("image and text at 1024 px", 1, 4608, 4608)),
    _image("FLUX.1 schnell", _FLUX, 24, 128, LayerUse("image and text at 1024 px", 1, 4352, 4352)),
)


_VIDEO = (
    _video("CogVideoX 2B", _COG, 30, 64, LayerUse("49 frames at 480 x 720 with text", 1, 17776, 17776)),
    _video(
        *("Wan 2.1 1.3B", f"{_WAN}wan_t2v_1_3B.py", 12, 128, LayerUse("81 frames at 480 x 832", 1, 32760, 32760)),
        LayerUse("512 text tokens", 1, 32760, 512),
    ),
    _video("Wan 2.1 14B", f"{_WAN}wan_i2v_14B.py", 40, 128, LayerUse("257 image tokens", 1, 32760, 257)),
    _video("Stable Video Diffusion", f"{_SGM}svd.yaml", 5, 64, LayerUse("14 frames at each of 72 x 128", 9216, 14, 14)),
    _video("VideoMAE base", _code("videomae"), 12, 64, LayerUse("16 frames at 224 px", 8, 1568, 1568)),
)


_SPEECH = (
    _speech(
        *("Whisper large v3", _hub("openai/whisper-large-v3"), 20, 64),
        LayerUse("encoder", 8, 1500, 1500),
        LayerUse("decoder on the audio", 8, 448, 1500),
        LayerUse("decoder on itself", 8, 448, 448, True),
        LayerUse("decoding: 1 token on the audio", 16, 1, 1500),
    ),
    _speech(
        *("Whisper tiny", _code("whisper"), 6, 64),
        LayerUse("encoder", 8, 1500, 1500),
    ),
    _speech(
        *("wav2vec 2.0 base", _code("wav2vec2"), 12, 64),
        LayerUse("10 seconds", 16, 499, 499),
    ),
)


_EVOFORMER = "OpenFold Evoformer without pair bias"
_PROTEIN = (
    _protein("ESM-2 650M", _hub("facebook/esm2_t33_650M_UR50D"), 20, 64, LayerUse("1024 residues", 4, 1024, 1024)),
    _protein("ESM-2 150M", _hub("facebook/esm2_t30_150M_UR50D"), 20, 32, LayerUse("1024 residues", 8, 1024, 1024)),
    _protein(
        *(_EVOFORMER, _OPENFOLD, 8, 32, LayerUse("rows of the alignment in training", 128, 256, 256)),
        LayerUse("columns of the alignment in training", 256, 128, 128),
        LayerUse("rows of the alignment in fine-tuning", 512, 384, 384),
    ),
    _protein(
        *(_EVOFORMER, _OPENFOLD, 4, 32, LayerUse("triangle attention in training", 256, 256, 256)),
        LayerUse("triangle attention in fine-tuning", 384, 384, 384),
    ),
)

MODELS = _LANGUAGE + _VISION + _IMAGE + _VIDEO + _SPEECH + _PROTEIN
DOMAINS = tuple(dict.fromkeys(model.domain for model in MODELS))


def _shapes() -> Iterator[RealShape]:
    for each in MODELS:
        for use in each.uses:
            case = attention_case(
                batch=use.batch,
                num_heads=each.heads[0],
                num_kv_heads=each.heads[1],
                seqlen=use.queries,
                seqlen_k=use.keys,
                head_dim=each.head_dim,
                head_dim_v=each.head_dim_v or each.head_dim,
                dtype="bfloat16",
                causal=use.causal,
                window_size=each.window_size,
            )
            yield RealShape(each.domain, f"{each.model}: {use.layer}", each.source, case)


SHAPES = tuple(_shapes())


def shape_of(case: Case | Fields) -> RealShape | None:
    """Return the shape of a model that an operator case has, independent of dtype and data; None if there is none."""
    fields = {name: getattr(case, name) for name in ("level", *_IDENTITY)} if isinstance(case, Case) else case
    if fields.get("level") not in (None, "op"):
        return None
    return _by_sizes().get(tuple(fields.get(name) for name in _IDENTITY))


@cache
def _by_sizes() -> dict[tuple[object, ...], RealShape]:
    return {tuple(getattr(shape.case, name) for name in _IDENTITY): shape for shape in SHAPES}
