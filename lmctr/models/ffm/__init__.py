"""FFM: field-aware factorisation machines, one vector per feature and other field."""
