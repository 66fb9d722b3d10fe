"""`python -m worker` is `gradstream`."""

from worker.cli import main

main()
