"""Attention shapes of existing models, each with its model, its layer and the source of its sizes.

A case has no label. `shape_of` finds the model by the sizes, so that runs of all sweeps and of other tools show it too.
The models are in real_shapes.toml, and those with features of a call in feature_shapes.toml. Sizes of language models
come from each `config.json`, as repeated in litgpt's litgpt/config.py with the same URL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from results.levels.tensors import Fields, known
from results.paths import toml_of
from results.records import Case, attention_case

NO_MODEL = "No model: the end of the scale between grouped and shared key heads."
_HUB = "https://huggingface.co/{}/blob/main/config.json"

_IDENTITY = (
    "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "causal", "window_size",
    "features",
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
    features: str | None = None  # text of results.features


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


def _model(uses: list[list[Any]], heads: list[int], hub: str = "", source: str = "", **said: Any) -> ModelAttention:
    calls = tuple(LayerUse(*use) for use in uses)
    return ModelAttention(source=source or _HUB.format(hub), heads=(heads[0], heads[1]), uses=calls, **said)


def _models(name: str) -> tuple[ModelAttention, ...]:
    read = toml_of(__file__, name)
    return tuple(_model(**each) for each in read["models"])


def _domains(models: tuple[ModelAttention, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(model.domain for model in models))


MODELS, FEATURED = _models("real_shapes.toml"), _models("feature_shapes.toml")
DOMAINS, FEATURE_DOMAINS = _domains(MODELS), _domains(FEATURED)


def _shapes(models: tuple[ModelAttention, ...]) -> Iterator[RealShape]:
    for each in models:
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
                features=each.features,
            )
            yield RealShape(each.domain, f"{each.model}: {use.layer}", each.source, case)


SHAPES, FEATURE_SHAPES = tuple(_shapes(MODELS)), tuple(_shapes(FEATURED))
_BY_SIZES = {tuple(getattr(shape.case, name) for name in _IDENTITY): shape for shape in (*FEATURE_SHAPES, *SHAPES)}


def shape_of(case: Case | Fields) -> RealShape | None:
    """Return the shape of a model that an operator case has, independent of dtype and data; None if there is none."""
    fields = {name: getattr(case, name) for name in ("level", *_IDENTITY)} if isinstance(case, Case) else case
    if fields.get("level") not in (None, "op"):
        return None
    return _BY_SIZES.get(tuple(known(fields.get(name)) for name in _IDENTITY))
