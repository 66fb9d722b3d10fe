"""Measured figures: `python -m ops.bench [NAME…] [--json]`. What they mean and what they were: docs/figures.md."""
