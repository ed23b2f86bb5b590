"""Latent attention for Hopper in Gluon: two warpgroups that share the output of 64 rows, 512 values each."""
