"""TwoTower, for the matching of ads."""
