"""Planning: scaling laws and what follows from them (sizes, machines, revenue), FLOPs, and how samples are stored and computed."""
