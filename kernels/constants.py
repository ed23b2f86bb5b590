"""Pass a configuration to a Triton or Gluon kernel as one constexpr argument."""

from typing import Any

import triton.language as tl

from .launches import INTERPRETED


class Constants:
    """A frozen dataclass as one constexpr argument of a kernel, which reads its fields as constexprs.

    Triton 3.6 does not take a plain number everywhere it takes a constexpr, and gives fields of a constexpr as they
    are. A field may be other Constants, as which the interpreter takes them.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        for name, value in vars(config).items():
            setattr(self, name, value if INTERPRETED and isinstance(value, Constants) else tl.constexpr(value))

    def __repr__(self) -> str:  # part of the key of Triton's cache
        return repr(self.config)

    def __hash__(self) -> int:
        return hash(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self.config == other.config
