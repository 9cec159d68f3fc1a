"""The target and drafter that come with the package, so that everything runs without a Hub."""
