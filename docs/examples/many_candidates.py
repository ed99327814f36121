"""One user, many candidates.

A decoder reads a user's history once; the candidates are packed behind what it kept, and get the logits that rows of their own would have.
A state is extended by new behaviours and goes to a file between two requests.
"""

import tempfile
import time
from collections.abc import Callable

import torch
from transformers import Qwen2Config

import lmctr
from lmctr.serving import UserState, score
from lmctr.training.tokenizers import train_tokenizer

NUM_CANDIDATES = 100


def tiny_decoder(log: "lmctr.data.InteractionLog") -> tuple["lmctr.CTRSinkForCTR", "lmctr.CTRSinkProcessor"]:
    """A decoder with random weights and its processor: what is shown here does not depend on what it has learned."""
    processor = lmctr.CTRSinkProcessor(
        train_tokenizer(log.catalogue["title"].to_pylist(), "bpe", vocab_size=400),
        prompt="generic/en",
        num_behaviors=40,
        feedback="sink",
        sink_signal="feedback",
    )
    backbone = Qwen2Config(
        vocab_size=len(processor.tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
    )
    torch.manual_seed(0)
    config = lmctr.CTRSinkConfig(
        text_config=backbone, sink_signal="feedback", num_sink_buckets=processor.num_sink_buckets
    )
    return lmctr.CTRSinkForCTR(config).eval(), processor


def timed(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """What `work` gives, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def main(folder: str) -> dict:
    """Keeps the state in `folder`; gives the largest differences between the ways and their seconds."""
    log = lmctr.data.synthetic_log(num_users=4, num_items=300, events_per_user=50)
    model, processor = tiny_decoder(log)
    titles = log.catalogue["title"].to_pylist()
    history = [
        {"text": title, "time": 60 * place, "feedback": "chosen" if place % 3 else "skipped"}
        for place, title in enumerate(titles[:40])
    ]
    candidates = [{"text": title} for title in titles[-NUM_CANDIDATES:]]

    def row_by_row() -> torch.Tensor:
        logits = []
        for candidate in candidates:
            batch = processor(histories=[history], targets=[candidate], times=[3000], return_tensors="pt")
            with torch.no_grad():
                logits.append(model(**batch).logits)
        return torch.cat(logits)

    rows, rows_seconds = timed(row_by_row)
    packed, packed_seconds = timed(lambda: score(model, processor, history, candidates, time=3000))
    state = UserState(model, processor, history)
    kept, kept_seconds = timed(lambda: score(model, processor, state, candidates, time=3000))
    print(f"{NUM_CANDIDATES} candidates, row by row: {rows_seconds:.3f} s")
    print(f"history encoded once: {packed_seconds:.3f} s, logits differ by {(packed - rows).abs().max():.1e}")
    print(f"history kept from before: {kept_seconds:.3f} s, logits differ by {(kept - rows).abs().max():.1e}")

    new = {"text": titles[45], "time": 3010, "feedback": "chosen"}
    state.save(f"{folder}/user.safetensors")
    state = UserState.load(f"{folder}/user.safetensors", model, processor)
    state.extend([new])
    later = score(model, processor, state, candidates, time=3020)
    afresh = score(model, processor, [*history, new], candidates, time=3020)
    print(f"a click later, from the file: logits differ by {(later - afresh).abs().max():.1e}")
    return {
        "packed": (packed - rows).abs().max().item(),
        "kept": (kept - rows).abs().max().item(),
        "extended": (later - afresh).abs().max().item(),
        "moved": (later - kept).abs().max().item(),
        "seconds": (rows_seconds, packed_seconds, kept_seconds),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
