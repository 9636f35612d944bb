"""The migrations of the app: they call the installer."""
