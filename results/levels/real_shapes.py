"""Attention shapes of existing models, each with its model, its layer and the source of its sizes.

A case has no label. `shape_of` finds the model by the sizes, so that runs of all sweeps and of other tools show it too.
The models are in real_shapes.toml, and those with features of a call in feature_shapes.toml. Sizes of language models
come from each `config.json`, as repeated in litgpt's litgpt/config.py with the same URL.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from results.levels.tensors import Fields, known
from results.paths import toml_of
from results.records import Case, attention_case

_HUB = "https://huggingface.co/{}/blob/main/config.json"
_SIZES = ("head_dim", "head_dim_v", "window_size", "features")
_IDENTITY = (
    "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "causal", "window_size",
    "features",
)  # fmt: skip


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


def _shapes(name: str) -> Iterator[RealShape]:
    """Yield the shapes of a TOML file, which has the heads of models and the calls made of them."""
    for each in toml_of(__file__, name)["models"]:
        heads = dict(zip(("num_heads", "num_kv_heads"), each["heads"], strict=True))
        rest = heads | {"head_dim_v": each["head_dim"]} | {field: each[field] for field in _SIZES if field in each}
        source = each.get("source") or _HUB.format(each["hub"])
        for layer, batch, queries, keys, *causal in each["uses"]:
            lengths = {"seqlen": queries, "seqlen_k": keys}
            case = attention_case(batch=batch, dtype="bfloat16", causal=any(causal), **lengths, **rest)
            yield RealShape(each["domain"], f"{each['model']}: {layer}", source, case)


SHAPES, FEATURE_SHAPES = (tuple(_shapes(name)) for name in ("real_shapes.toml", "feature_shapes.toml"))
DOMAINS, FEATURE_DOMAINS = (
    tuple(dict.fromkeys(shape.domain for shape in shapes)) for shapes in (SHAPES, FEATURE_SHAPES)
)
_BY_SIZES = {tuple(getattr(shape.case, name) for name in _IDENTITY): shape for shape in (*FEATURE_SHAPES, *SHAPES)}


def shape_of(case: Case | Fields) -> RealShape | None:
    """Return the shape of a model that an operator case has, independent of dtype and data; None if there is none."""
    fields = {name: getattr(case, name) for name in ("level", *_IDENTITY)} if isinstance(case, Case) else case
    if fields.get("level") not in (None, "op"):
        return None
    return _BY_SIZES.get(tuple(known(fields.get(name)) for name in _IDENTITY))
