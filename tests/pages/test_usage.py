"""How a page says to use the winner: its lines run."""

import sys

import torch

import kernels
from results.recommend import usage


def test_the_winner_can_be_called_by_the_lines_below_it(app, monkeypatch):
    app.session_state["usage"] = True  # the expander is open
    app.run()
    (code,) = (block.value for block in app.code)
    assert code.splitlines()[0] == "from attnbench import registry"
    assert 'registry.get("triton_fa2").attention(q, k, v, causal=True, window_size=0' in code
    (source,) = (b for b in app.get("download_button") if b.proto.label.startswith("Source"))
    assert source.proto.label == "Source: kernels/attention/triton_fa2/__init__.py"
    monkeypatch.setitem(sys.modules, "attnbench", kernels)
    q = torch.randn(1, 2, 16, 32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    for name in ("torch_naive", "torch_sdpa_math"):
        found = {"q": q, "k": q, "v": q, "torch": torch}
        exec(usage.usage_of(name, "op").code, found)
        torch.testing.assert_close(found["out"], expected)
    assert usage.usage_of("flash_attn_4", "op").project.endswith("flash-attention")
    assert usage.usage_of("my_kernel", "op") is None
    assert "attnbench.decode(" in usage.usage_of("triton_split_kv", "decode").code
