"""Measuring plain generate against Domino."""
