"""Tiny run folders of every kind of input, requests to them, and a server on loopback."""

import asyncio
import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import torch
import uvicorn
from sequence_rows import BEHAVIORS, SCENARIOS, sequence_log

import lmctr
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.synthetic.cascade import synthetic_cascade
from lmctr.runs.answers.engine import Engine
from lmctr.runs.answers.served import ServedModel
from lmctr.runs.folder import ITEM_STATISTICS
from lmctr.runs.reference import write_reference
from lmctr.server.app import create_app
from lmctr.server.metrics import ServerMetrics
from lmctr.serving import RequestStatistics
from lmctr.statistics import ItemStatistics, StatisticsReader

sys.path.append(str(Path(__file__).parents[1] / "serving"))
import serving_models
from serving_models import WORDS


def save(path, model, processor, batch):
    model.eval().save_pretrained(path)
    processor.save_pretrained(path)
    write_reference(path, model, batch)
    return path


def text_run(path, model_type="qwen2", seed=0, **values):
    settings = {"feedback": "inline", "sink_signal": "feedback"} | values
    model, processor = serving_models.make(model_type, seed=seed, **settings)
    one = text_request(seed)
    batch = processor(histories=[one["history"]], targets=one["candidates"][:1], times=[one["time"]])
    return save(path, model, processor, batch)


def event_run(path, family="hstu", seed=0, with_statistics=False, graded=False):
    log = sequence_log(graded=graded)
    options = {"max_history_length": 8}
    if with_statistics:
        reader = StatisticsReader.fit(log, log.sample_events(), ["full", "factors"])
        options |= {"statistics_reader": reader, "behavior_labels": [-1, 0, 1]}
    processor = lmctr.SequenceProcessor.fit(log, **options)
    config, model = {"hstu": (lmctr.HSTUConfig, lmctr.HSTUForCTR), "din": (lmctr.DINConfig, lmctr.DINForCTR)}[family]
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2} if family == "hstu" else {"embedding_dim": 8}
    model = model(config(**processor.model_config_values(), **size, initializer_range=0.3))
    one = event_request(seed)
    candidates, more = one["candidates"][:2], {}
    if with_statistics:
        items = ItemStatistics.from_log(log, reader)
        path.mkdir()
        items.save(path / ITEM_STATISTICS)
        counted = RequestStatistics(processor, items)
        counted.extend(one["history"])
        more["statistics"] = [[entry["statistics"] for entry in counted.fill(candidates, one["time"])]]
    return save(path, model, processor, processor([one["history"]], [candidates], times=[one["time"]], **more))


def table_run(path, seed=0):
    fields = [{"name": "ad", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    processor = lmctr.TabularFeatureProcessor(fields, label=None)
    processor.fit([{"ad": f"a{number % 5}", "price": number} for number in range(50)])
    torch.manual_seed(seed)
    config = lmctr.DeepFMConfig(
        **processor.model_config_values(), embedding_dim=4, hidden_units=[8], initializer_range=0.5
    )
    return save(path, lmctr.DeepFMForCTR(config), processor, processor([{"ad": "a1", "price": 2.0}]))


def impression_run(path, seed=0):
    source = cascade()
    processor = ImpressionProcessor(source.user_fields, source.ad_fields).fit(source)
    torch.manual_seed(seed)
    config = lmctr.TwoTowerConfig(
        **processor.model_config_values(), embedding_dim=4, hidden_units=[12, 8], initializer_range=0.5
    )
    one = impression_request(seed)
    return save(path, lmctr.TwoTowerForCTR(config), processor, processor(users=[one["user"]], ads=[one["ads"]]))


def cascade():
    sizes = {"num_matched": 30, "num_preranked": 20, "num_ranked": 8, "ads_per_impression": 6}
    return synthetic_cascade(40, 20, 60, **sizes)


def text_request(seed, behaviors=None, candidates=None):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(0, 9)) if behaviors is None else behaviors
    times = 10 + np.cumsum(draw.integers(1, 1000, count))
    history = [
        {
            "text": " ".join(draw.choice(WORDS, 2)),
            "time": int(when),
            "feedback": ("disliked", "liked")[draw.integers(2)],
        }
        for when in times
    ]
    number = int(draw.integers(1, 7)) if candidates is None else candidates
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 5))) for _ in range(number)]
    return {"history": history, "candidates": texts, "time": 100_000}


def event_request(seed, behaviors=None, candidates=None):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 12)) if behaviors is None else behaviors
    history = [
        {
            "item": 100 + int(draw.integers(12)),
            "behavior": BEHAVIORS[draw.integers(3)],
            "scenario": SCENARIOS[draw.integers(3)],
            "time": 3 * place,
        }
        for place in range(count)
    ]
    number = int(draw.integers(2, 7)) if candidates is None else candidates
    items = [100 + int(draw.integers(12)) for _ in range(number)]
    return {"history": history, "candidates": items, "scenario": "home", "time": 1000}


def table_request(seed):
    draw = np.random.default_rng(seed)
    rows = range(int(draw.integers(1, 4)))
    return {"rows": [{"ad": f"a{draw.integers(7)}", "price": float(draw.integers(60))} for _ in rows]}


def impression_request(seed):
    block = next(iter(cascade().blocks("train")))
    users, ads = block.users.to_pylist(), block.ads.to_pylist()
    return {"user": users[seed % len(users)], "ads": ads[seed % 20 : seed % 20 + 2 + seed % 5]}


KINDS = {
    "qwen2": (text_run, text_request),
    "bert": (lambda path, seed=0: text_run(path, "bert", seed), text_request),
    "hstu": (event_run, event_request),
    "din": (lambda path, seed=0: event_run(path, "din", seed), event_request),
    "deepfm": (table_run, table_request),
    "two_tower": (impression_run, impression_request),
}


class _Server(uvicorn.Server):
    async def main_loop(self):
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)  # a tenth of what a server waits between two looks for its end


class Live:
    """A running server: its engine, its metrics, and a client."""

    def __init__(self, run, limits, engine):
        self.metrics = ServerMetrics()
        self.engine = Engine(ServedModel(str(run)), on_batch=self.metrics.on_batch, **{"workers": 2, **engine})
        app = create_app(self.engine, self.metrics, **limits)
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.server = _Server(uvicorn.Config(app, log_level="warning", access_log=False))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=60, limits=httpx.Limits(max_connections=64))
        while not self.server.started:
            time.sleep(0.01)

    def post(self, route, body, **more):
        return self.client.post(route, json=body, **more)

    def score(self, body):
        response = self.post("/v1/score", {**body, "logits": True})
        assert response.status_code == 200, response.text
        return response.json()

    def metric(self, name, **labels):
        value = self.metrics.registry.get_sample_value(name, labels or None)
        return 0.0 if value is None else value

    def stop(self):
        self.client.close()
        self.server.should_exit = True
        self.thread.join()
        self.engine.close()


@contextlib.contextmanager
def live(run, limits=(), **engine):
    server = Live(run, dict(limits), engine)
    try:
        yield server
    finally:
        server.stop()


def logits_of(answer):
    """(C,) of an answer."""
    found = answer["scores"] if "scores" in answer else answer["logits"]
    return np.array([found] if isinstance(found, float) else found)
