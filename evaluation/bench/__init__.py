"""A latency model of speculative decoding without trained weights: measured stages, rooflines, projected speedups."""
