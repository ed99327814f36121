"""FFM: field-aware factorisation machines."""
