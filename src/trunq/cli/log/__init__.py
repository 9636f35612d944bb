"""Commands about what comes into a log."""
