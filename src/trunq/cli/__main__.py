"""`python -m trunq.cli`: the same as the command `trunq`."""

from trunq.cli import main

main()
