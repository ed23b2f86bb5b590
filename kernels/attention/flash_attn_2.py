"""FlashAttention-2 (the package flash-attn, BSD licence, Dao-AILab/flash-attention), where it is installed.

Written for the signatures of version 2.8 and tested with mocks that have them, never with the package itself.
"""

from .. import packages

call = packed = packages.flash_call("flash_attn")
IMPLEMENTATIONS = packages.op("flash_attn_2", call, packed=packed)
