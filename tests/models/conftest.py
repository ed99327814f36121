"""Puts this folder on the import path: the families' tests share `tabular_inputs`."""
