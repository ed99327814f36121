"""Sharing: checking a run folder, its model card, and the Hugging Face Hub.

- `lmctr.hub.checks.validate_run`: is the folder complete, sound and loadable, and does it give the run's own logits?
- `lmctr.hub.model_card.build_card`: the model card, filled from what the run wrote down.
- `lmctr.hub.publish.push_run`: both, then the upload.
- `lmctr.runs.reference.write_reference`: a few inputs and logits that a run keeps, for the comparison after a reload.
"""
