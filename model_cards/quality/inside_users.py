"""AUC and gAUC of exact readers of the generated log that are told the right, no or the wrong effect of a user's last labels."""

from dataclasses import replace

import numpy as np

from lmctr.data import SyntheticLog, split_log
from lmctr.evaluation.metrics import auc, grouped_auc

for effect in (1.8, 0.0, -0.45):
    found = []
    for seed in range(7):
        generator = SyntheticLog(num_users=400, num_items=300, events_per_user=60, seed=seed)
        log, _ = generator.generate()
        test = split_log(log).test
        reader = replace(generator, recency_effect=effect)
        probability = reader.history_probability(log, test, generator.events_per_user)
        labels, users = log.label[test], log.user[test]
        found.append((auc(labels, probability), grouped_auc(labels, probability, groups=users)))
    print(
        effect,
        "AUC, gAUC by draw:",
        *(f"{a:.4f}, {g:.4f};" for a, g in found),
        "mean",
        *np.round(np.mean(found, 0), 4),
    )
