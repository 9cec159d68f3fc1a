"""`domino report`: what an evaluation's folder says, as Markdown, a page with plots, and a model card's snippet."""
