"""A sample of CTR-Sink put together in plain Python, piece by piece, from the specification."""

import math

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x):
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def sample(
    tokenizer,
    prompt,
    history,
    target,
    time,
    *,
    sink_id,
    num_behaviors=50,
    order="recent",
    signals=("recency",),
    num_buckets=100,
    feedback="none",
    trailing_sink=True,
    max_length=None,
    elements=None,
):
    """Token ids, buckets (one list per signal), target mask and number of dropped behaviours of one sample.

    `history` is a list of (text, time, code, similarity) and, if wanted, the bucket of the graded feedback, oldest first; the tokenizer's sink is `sink_id` (None: no sinks).
    A list given as `elements` gets the number of tokens of each element of the layout "split".
    """

    def ids(text, before):
        """Tokens of a piece; a blank at the end of the text before it belongs to this piece."""
        text = text[:-1] if text.endswith(" ") else text
        text = " " + text if before.endswith(" ") and text else text
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] if text else []

    separator, head = prompt["separator"], prompt["head"]
    whole = tokenizer("x")["input_ids"]
    bare = tokenizer("x", add_special_tokens=False)["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
    opening, closing = whole[:start], whole[start + len(bare) :]

    # selection and order
    entries = [
        {"place": i, "text": t or "", "time": s, "code": c, "sim": m, "value": next(iter(v), 0)}
        for i, (t, s, c, m, *v) in enumerate(history)
    ]
    codes = range(1, len(prompt["feedback"]) + 1) if feedback == "groups" else [None]
    groups = []
    for code in codes:
        own = [e for e in entries if code is None or e["code"] == code]
        if order == "recent":
            own = own[-num_behaviors:]
        else:
            own = sorted(own, key=lambda e: (e["sim"], e["place"]))[-num_behaviors:]
            if order == "time":
                own.sort(key=lambda e: e["place"])
        groups.append((code, own))

    def build():
        out, sinks = list(opening) + ids(head, ""), []
        starts = [0]
        shown = [(code, e) for code, own in groups for e in own]
        last_code = None
        for number, (code, e) in enumerate(shown):
            if code is not None and code != last_code:
                starts.append(len(out))
                out += ids(prompt["feedback"][code - 1]["header"], head if number == 0 else separator)
                last_code = code
            starts.append(len(out))
            if feedback == "inline" and e["code"]:
                out += ids(prompt["feedback"][e["code"] - 1]["word"], separator)
            out += ids(e["text"].strip(), separator)
            out += ids(separator, "")
            if sink_id is not None and (trailing_sink or number < len(shown) - 1):
                sinks.append((len(out), e, len(shown) - 1 - number))
                starts.append(len(out))
                out.append(sink_id)
        starts.append(len(out))
        if not entries:
            out += ids(prompt["empty_history"], head)
        starts.append(len(out))
        prefix, suffix = prompt["target"].split("{item}")
        out += ids(prefix, separator)
        first = len(out)
        out += ids((target or "").strip(), separator)
        stop = len(out)
        out += ids(suffix, "")
        if first == stop:
            first, stop = first - len(ids(prefix, separator)), len(out)
        out += list(closing)
        if elements is not None:
            elements[:] = [b - a for a, b in zip(starts, [*starts[1:], len(out)], strict=True) if b > a]
        return out, sinks, (first, stop)

    dropped = 0
    out, sinks, (first, stop) = build()
    while max_length is not None and len(out) > max_length:
        # the behaviour farthest from the end of its group, of the earlier group when two are equally far
        victim = max(groups, key=lambda g: len(g[1]))
        assert victim[1], "head and target alone do not fit"
        victim[1].pop(0)
        dropped += 1
        out, sinks, (first, stop) = build()

    key = 0
    for j, token in enumerate(ids((target or "").strip(), separator)):
        key = (key + splitmix64((token + GOLDEN * (j + 1)) & MASK)) & MASK
    key = splitmix64(splitmix64(splitmix64(time) ^ len(history)) ^ key)
    buckets = [[-1] * len(out) for _ in signals]
    for position, e, from_target in sinks:
        values = {
            "none": 0,
            "recency": min(len(history) - 1 - e["place"], num_buckets - 1),
            "elapsed": min(
                int(num_buckets * math.log(1 + time - e["time"]) / math.log(1 + 3650 * 86400)), num_buckets - 1
            ),
            "similarity": min(max(math.floor((e["sim"] + 1) / 2 * num_buckets), 0), num_buckets - 1),
            "feedback": e["code"],
            "ordinal": min(int(num_buckets * math.log(1 + e["place"]) / math.log(1 + 10**7)), num_buckets - 1),
            "feedback_value": e["value"],
            "random": splitmix64((key + GOLDEN * (from_target + 1)) & MASK) % num_buckets,
        }
        for row, signal in zip(buckets, signals):
            row[position] = values[signal]
    return out, buckets, [first <= i < stop for i in range(len(out))], dropped
