"""Makes the helper modules of this folder importable from the tests in its subfolders."""
