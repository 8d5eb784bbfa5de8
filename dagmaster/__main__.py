"""`python -m dagmaster` is `dagmaster`."""

from dagmaster.cli import main

main()
