"""TwoTower: a foundation MLP per side and their inner product, of the matching stage."""
