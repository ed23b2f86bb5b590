"""Attention implementations: tensors in, tensors out."""
