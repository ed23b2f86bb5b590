"""Latent attention for Hopper in Gluon: one warpgroup for scores, two that share the output of 64 rows."""
