"""Generated data."""
