"""Publishing a drafter: export, validation, model card."""
