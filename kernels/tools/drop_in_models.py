"""Try our attention in a tiny model of every family of language models in transformers, on a CPU in float32.

    python -m kernels.tools.drop_in_models [--seconds 60] [CONFIG ...]

It makes seven calls of each model, with its own eager attention and with ours: padding at a side and between tokens,
packed sequences, a prompt in chunks, and generation with either cache. A call is right if the logits of real tokens
differ by at most 10^-4 of the largest, else wrong. "Its own": transformers kept the model's eager attention. Refused:
by `kernels.transformers`. Failed: with another error. A configuration that does not become tiny by the sizes of
tiny_models.toml is left out. `python -m runner run training` trains models with our attention and with others.
"""

import argparse
import signal
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..models import cache_argument
from ..registry import UnsupportedCase
from ..transformers import FRONT_DOOR, register

RIGHT, OWN, REFUSED, FAILED, WRONG = "right", "its own", "refused", "failed", "wrong"
LEFT_OUT = "left out"
Results = tuple[torch.Tensor, torch.Tensor]  # logits, and which of their rows belong to real tokens
_ALLOWED = 1e-4
_BATCH, _TOKENS = 3, 12
_TINY = tomllib.loads(Path(__file__).with_name("tiny_models.toml").read_text())
SIZES: dict[str, Any] = _TINY["sizes"]


def make_tiny(config: Any) -> Any:
    """Give a configuration, and those within it, the sizes of SIZES."""
    for name, size in SIZES.items():
        if getattr(config, name, None) or (hasattr(config, name) and name in _TINY["always"]):
            setattr(config, name, size)
    if getattr(config, "kv_lora_rank", None):  # latent attention has as many key heads as query heads
        config.num_key_value_heads = config.num_attention_heads
    kinds = getattr(config, "layer_types", None)
    if kinds:  # one layer of each kind
        config.layer_types = (list(dict.fromkeys(kinds)) * 2)[: max(2, len(set(kinds)))]
        config.num_hidden_layers = len(config.layer_types)
    for name in ("text_config", "decoder"):
        if hasattr(getattr(config, name, None), "to_dict"):
            make_tiny(getattr(config, name))
    return config


def _tokens() -> torch.Tensor:
    return torch.randint(3, SIZES["vocab_size"], (_BATCH, _TOKENS), generator=torch.Generator().manual_seed(1))


def _mask(*padding: tuple[int, slice]) -> torch.Tensor:
    mask = torch.ones(_BATCH, _TOKENS, dtype=torch.long)
    for row, tokens in padding:
        mask[row, tokens] = 0
    return mask


_LEFT = _mask((1, slice(3)), (2, slice(5)))
_RIGHT = _mask((1, slice(9, None)), (2, slice(7, None)))
_HOLES = _mask((0, slice(4, 6)), (1, slice(2)))


def _padded(mask: torch.Tensor) -> Callable[[nn.Module], Results]:
    return lambda model: (model(input_ids=_tokens(), attention_mask=mask).logits, mask.bool())


def _packed(model: nn.Module) -> Results:
    places = torch.tensor([[*range(5), *range(_TOKENS - 5)]])
    logits = model(input_ids=_tokens()[:1], position_ids=places, use_cache=False).logits
    return logits, torch.ones(1, _TOKENS, dtype=torch.bool)


def _chunked(model: nn.Module) -> Results:
    logits: list[torch.Tensor] = []
    name, cache = cache_argument(model), None
    for start, end in ((0, 5), (5, 11), (11, _TOKENS)):
        ids, mask = _tokens()[:, start:end], _LEFT[:, :end]
        out = model(input_ids=ids, attention_mask=mask, use_cache=True, **{name: cache})
        logits, cache = [*logits, out.logits], out[name]
    return torch.cat(logits, 1), _LEFT.bool()


def _generated(**options: Any) -> Callable[[nn.Module], Results]:
    asked = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}

    def call(model: Any) -> Results:
        found = model.generate(
            _tokens(), attention_mask=_LEFT, return_dict_in_generate=True, output_logits=True, **asked
        )
        logits = torch.stack(found.logits, 1)
        return logits, torch.ones(logits.shape[:2], dtype=torch.bool)

    return call


CALLS: Mapping[str, Callable[[nn.Module], Results]] = {
    "padding on the left": _padded(_LEFT),
    "padding on the right": _padded(_RIGHT),
    "padding between tokens": _padded(_HOLES),
    "packed": _packed,
    "in chunks": _chunked,
    "generation": _generated(),
    "generation with a static cache": _generated(cache_implementation="static", disable_compile=True),
}


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the body takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(model: Any, call: Callable[[nn.Module], Results]) -> tuple[str, str]:
    """Return how a call with our attention compares with the model's own, and the error or reason."""
    try:
        model.set_attn_implementation("eager")
        exact, real = call(model)
    except TimeoutError:
        raise
    except Exception as error:  # the model itself does not take such a call
        return LEFT_OUT, f"{type(error).__name__}: {error}"[:100]
    model.set_attn_implementation(FRONT_DOOR)
    if model.config._attn_implementation != FRONT_DOOR:
        return OWN, "transformers did not exchange the attention"
    try:
        found, _ = call(model)
    except TimeoutError:
        raise
    except UnsupportedCase as refused:
        return REFUSED, str(refused)
    except Exception as error:  # a user would see it
        return FAILED, f"{type(error).__name__}: {error}"[:100]
    deviation = ((found - exact)[real].abs().max() / exact[real].abs().max()).item()
    return (RIGHT if deviation <= _ALLOWED else WRONG), f"{deviation:.1e}"


def try_family(config_class: type, seconds: int) -> dict[str, tuple[str, str]]:
    """Return the outcome of every call of a family; the reason for leaving it out is that of "model"."""
    import transformers

    try:
        with _at_most(seconds):
            config = make_tiny(config_class())
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
            with torch.no_grad():
                return {name: outcome(model, call) for name, call in CALLS.items()}
    except Exception as error:  # a family with further rules about its sizes
        return {"model": (LEFT_OUT, f"{type(error).__name__}: {error}"[:100])}


def try_families(names: Sequence[str], seconds: int) -> int:
    """Print a line for each family and what is not right in it; return 1 if anything is wrong."""
    import transformers

    warnings.simplefilter("ignore")  # raised by the families
    transformers.logging.set_verbosity_error()
    register(())
    families = {each.__name__: each for each in transformers.MODEL_FOR_CAUSAL_LM_MAPPING}
    total: Counter[str] = Counter()
    for family in sorted(names or families):
        found = try_family(families[family], seconds)
        counts = Counter(state for state, _ in found.values())
        total += counts
        print(f"{family:32} {', '.join(f'{count} {state}' for state, count in counts.items())}", flush=True)
        for state, said in dict.fromkeys(found.values()):
            if state != RIGHT:
                calls = ", ".join(name for name, each in found.items() if each == (state, said))
                print(f"    {state}: {calls}: {said}", flush=True)
    print(", ".join(f"{count} {state}" for state, count in total.items()))
    return int(total[WRONG] > 0)


def main(arguments: list[str] | None = None) -> int:
    """Try the families that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.drop_in_models")
    parser.add_argument("names", nargs="*", metavar="CONFIG", help="names such as LlamaConfig; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="the most that a family may take")
    chosen = parser.parse_args(arguments)
    return try_families(chosen.names, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
