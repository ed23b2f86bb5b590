"""FlashAttention-3 (the folder hopper of Dao-AILab/flash-attention, BSD licence), where it is installed.

Written for the signatures of release 3.0.0b1, which may return the logsumexp after the output, and tested with
mocks that have them, never with the package itself.
"""

from .. import packages

call = packed = packages.flash_call("flash_attn_interface")
IMPLEMENTATIONS = packages.op("flash_attn_3", call, packed=packed)
