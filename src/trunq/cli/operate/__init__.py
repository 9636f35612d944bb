"""Commands for whoever runs the system."""
