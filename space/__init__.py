"""The Space: plain `generate` and Domino side by side in a browser (docs/space.md)."""
