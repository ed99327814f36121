"""Impressions of ads: their source and their store."""
