"""All Triton operators; importing this file needs triton, see `seam.operators`."""

from . accept import accept  # fmt: skip  # isort: skip
from . greedy_step import greedy_step  # fmt: skip  # isort: skip
from . gru import gru  # fmt: skip  # isort: skip
from . pool import gather_pool  # fmt: skip  # isort: skip
from . rollout import rollout_greedy, rollout_sample  # fmt: skip  # isort: skip
from . sample_step import sample, sample_step  # fmt: skip  # isort: skip

__all__ = ["accept", "gather_pool", "greedy_step", "gru", "rollout_greedy", "rollout_sample", "sample", "sample_step"]
