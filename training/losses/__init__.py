"""Parts of the objective, one idea a file; `training/objective.py` puts them together."""
