"""What runs as a process beside workers: consumers and movers; its signals and threads."""
