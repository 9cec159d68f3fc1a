"""The decode loops: the engine, transformers' assisted loop, and what connects them to `generate`."""
