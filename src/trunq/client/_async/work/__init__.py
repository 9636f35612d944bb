"""Work: leases, answers, progress, cancelling, replies, the bell."""
