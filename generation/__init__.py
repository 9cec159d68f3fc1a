"""Drafting for generate(): the candidate generator and what connects it to transformers."""
