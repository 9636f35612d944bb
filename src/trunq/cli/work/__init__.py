"""Commands about messages and those who work on them."""
