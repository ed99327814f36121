"""Features of rows: their fields, vocabularies, and the processor that turns rows into ids."""
