"""All Triton operators; importing this file needs triton, see `seam.operators`."""

from . pool import gather_pool  # fmt: skip  # isort: skip
from . rollout import rollout_greedy, rollout_sample  # fmt: skip  # isort: skip
from . sample import sample  # fmt: skip  # isort: skip

__all__ = ["gather_pool", "rollout_greedy", "rollout_sample", "sample"]
