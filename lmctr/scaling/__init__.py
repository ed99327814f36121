"""Planning: scaling laws and what follows from them (sizes, machines, revenue), FLOPs, and how samples are stored and computed.

arXiv 2411.13322 is "Scaling Laws for Online Advertisement Retrieval".
"""
