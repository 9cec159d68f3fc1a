"""Training a drafter: distil the target, then fit the drafter to what it said."""
