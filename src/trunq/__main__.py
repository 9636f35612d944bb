"""`python -m trunq`: the command `trunq`."""

from trunq.cli import main

main()
