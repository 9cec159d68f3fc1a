"""`domino doctor`, and the cases that decide what is on by default on a device (`devices/`)."""
