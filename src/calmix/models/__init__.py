"""Checkpoints in and out, and where in them the embeddings, layers and head are."""
