"""Planning: floating-point operations, and how samples are stored and computed."""
