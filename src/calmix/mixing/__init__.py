"""Who is mixed with whom, where, and what the loss is a sum of."""
