"""Uploads of a training's model and checkpoints to the Hub, while it goes on."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy
from transformers.utils import PushInProgress

_MODEL_FILES = (
    *("config.json", "generation_config.json"),
    "model*.safetensors*",
    "adapter_config.json",
    "adapter_model.safetensors",
)


class CheckpointUploads:
    """A part of a `Trainer` that uploads complete checkpoints only: its `_complete(folder)` makes one of what the parent has written."""

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As in the parent, which begins the upload before the checkpoint is complete, and pickles the arguments beside the model."""
        self._complete(Path(checkpoint_folder))
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        for pattern in _MODEL_FILES:
            for path in Path(checkpoint_folder).glob(pattern):
                shutil.copy(path, self.args.output_dir)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(self.args.output_dir)
        by_steps = self.args.save_strategy == SaveStrategy.STEPS
        place = f"step {self.state.global_step}" if by_steps else f"epoch {int(self.state.epoch)}"
        message = f"Training in progress, {place}"
        ignored = ["_*", f"{PREFIX_CHECKPOINT_DIR}-*", TRAINING_ARGS_NAME]
        jobs = [self._upload(self.args.output_dir, message, ignore_patterns=ignored)]
        in_repo = {
            HubStrategy.CHECKPOINT: "last-checkpoint",
            HubStrategy.ALL_CHECKPOINTS: Path(checkpoint_folder).name,
        }
        if self.args.hub_strategy in in_repo:
            message += ", checkpoint"
            jobs.append(self._upload(checkpoint_folder, message, path_in_repo=in_repo[self.args.hub_strategy]))
        if busy:
            self.push_in_progress.jobs.extend(jobs)
        else:
            self.push_in_progress = PushInProgress(jobs)

    @cached_property
    def _uploads(self) -> HfApi:
        """One for all uploads of a training, so that they have one thread."""
        return HfApi()

    def _upload(self, folder: str, message: str, **options: Any) -> Future:
        """Uploads that run one after the other while the training goes on."""
        return self._uploads.upload_folder(
            repo_id=self.hub_model_id,
            folder_path=folder,
            commit_message=message,
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            run_as_future=True,
            **options,
        )
