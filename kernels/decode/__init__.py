"""Decoding implementations, a file or package each: 1 to 16 query tokens a sequence over a cache of keys and values."""
