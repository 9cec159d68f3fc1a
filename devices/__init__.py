"""What ran on which device: checks in a process of their own, and the verdicts they leave. Imports nothing of the package."""
