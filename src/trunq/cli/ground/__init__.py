"""What all commands stand on: options, output, failures, the database."""
