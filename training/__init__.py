"""Training a drafter: the target answers prompts, then the drafter is trained on the answers."""
