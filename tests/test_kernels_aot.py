"""All kernels compile for three architectures without a GPU, and none spills."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


def build(folder, *arguments):
    """Rows of `domino.kernels.aot`, in a process of its own: interpreted kernels cannot be compiled."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "domino.kernels.aot", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_builds_for_every_architecture(tmp_path):
    rows = build(tmp_path)
    assert {row["sm"] for row in rows} == {80, 90, 120}
    kernels = {row["kernel"] for row in rows}
    rollouts = {"rollout_greedy", "rollout_sample", "rollout_greedy_pool", "rollout_sample_pool"}
    assert kernels == {"sample", "pool"} | rollouts
    assert len(rows) == 3 * len(kernels)
    for row in rows:
        assert row["stack"] == row["local"] == 0, row
        assert row["bytes"] > 0
        assert row["shared"] <= 99 * 1024  # the least of the three, sm_120's
        if row["kernel"] in rollouts:
            # Reads as wide as the launch's: two tiles each of W_hh's three gates [16, 64] and of S [64, 16] are on their way
            # while a third is multiplied. With strides that nothing is known of, those in bfloat16 would not be.
            assert row["shared"] >= 2 * 64 * (3 * 16 * 2 + 16 * 4)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fp16", "fp32"])
def test_other_weights_build_too(weights, tmp_path):
    assert all(row["stack"] == row["local"] == 0 for row in build(tmp_path, "--weights", weights))
