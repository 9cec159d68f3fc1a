"""The target's side: one forward over a proposal, and the rules that keep a path of it."""
