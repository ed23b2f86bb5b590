"""Define operators of PyTorch, which torch.compile keeps whole, so that a call costs little time of the host.

On a CPU with torch 2.11, a call takes 5 us beyond the kernel. With a gradient that is registered with the operator it
takes 15 us, and by torch.library.custom_op 21 us.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

_LIBRARIES: list[torch.library.Library] = []  # an operator lives as long as its library


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a function an operator; `fake` allocates what it returns. It has no gradient."""

    def made(function: Callable[..., Any]) -> Any:
        found = _defined(schema, function, "CompositeExplicitAutograd")
        torch.library.register_fake(found.name(), fake)
        return found

    return made


def ask_first(operator: Any, answer: Callable[..., Any]) -> None:
    """Let Python answer calls of an operator without PyTorch's dispatcher, which takes half of the host time of a call.

    `answer` returns None for what it cannot compute. It is not asked while a profile or a mode looks at operators.
    """
    dispatched = operator._op

    def call(*given: Any, **named: Any) -> Any:
        if named or torch.autograd._profiler_enabled() or torch._C._len_torch_function_stack():
            return dispatched(*given, **named)
        found = answer(*given)
        return dispatched(*given) if found is None else found

    operator._op = call


def differentiable(schema: str, forward: Any, backward: Any) -> Any:
    """Make an operator of the gradients of `forward`, which is kept whole until they are traced.

    `forward` returns out and lse; `backward` takes q, k, v, out, lse and dout as a list, then the other arguments, and
    returns the gradients of the first arguments.
    """

    def applied(*inputs: Any) -> Any:
        leaves, form = tree_flatten(inputs)
        return _Differentiable.apply(forward, backward, form, *leaves)

    return _defined(schema, applied, "CompositeImplicitAutograd")


class _Differentiable(torch.autograd.Function):
    """Calls two operators, and saves between them the tensors among their arguments, out and lse."""

    @staticmethod
    def forward(operator: Any, backward: Any, form: Any, *leaves: Any) -> Any:
        """Return out and lse."""
        return operator(*tree_unflatten(leaves, form))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Save what the backward reads."""
        _, ctx.operator, ctx.form, *leaves = inputs
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        ctx.save_for_backward(*output, *(x if isinstance(x, torch.Tensor) else None for x in leaves))
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient of each first argument that is a tensor."""
        out, lse, *saved = ctx.saved_tensors
        leaves = [other if x is None else x for x, other in zip(saved, ctx.others, strict=True)]
        q, k, v, *rest = tree_unflatten(leaves, ctx.form)
        found = ctx.operator([q, k, v, out, lse, dout], *rest)
        gradients = [None if x is None else gradient for x, gradient in zip(saved, found, strict=False)]
        return None, None, None, *gradients, *(None,) * (len(leaves) - len(gradients))


def _defined(schema: str, function: Callable[..., Any], key: str) -> Any:
    name, space = schema.partition("(")[0], "attnbench"
    while hasattr(getattr(torch.ops, space), name):  # another copy of this package is loaded
        space += "_"
    library = torch.library.Library(space, "FRAGMENT")
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, function, key)
    _LIBRARIES.append(library)
    return getattr(getattr(torch.ops, space), name).default
