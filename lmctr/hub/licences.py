"""The identifiers that the Hub knows for the licence of a model, see https://huggingface.co/docs/hub/repositories-licenses."""

from __future__ import annotations

from difflib import get_close_matches

# fmt: off
LICENCES = (
    "afl-3.0", "agpl-3.0", "apache-2.0", "apple-amlr", "apple-ascl", "artistic-2.0", "bigcode-openrail-m",
    "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0",
    "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0", "creativeml-openrail-m",
    "deepfloyd-if-license", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2",
    "fair-noncommercial-research-license", "gemma", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "grok2-community", "h-research",
    "intel-research", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3",
    "llama4", "lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1", "openrail", "openrail++", "osl-3.0",
    "pddl", "postgresql", "unlicense", "wtfpl", "zlib", "unknown", "other",
)
# fmt: on


def check_licence(licence: str | None) -> None:
    """Raise `ValueError` for a licence that the Hub has no identifier of."""
    if licence is None or licence in LICENCES:
        return
    near = get_close_matches(licence.lower().replace(" ", "-"), LICENCES, 3, 0.5) or ["apache-2.0", "mit", "cc-by-4.0"]
    raise ValueError(
        f"licence {licence!r} is no identifier of the Hub's; accepted: {', '.join(near)} and the others of "
        "https://huggingface.co/docs/hub/repositories-licenses, or 'other', which README.md then names by license_name and license_link"
    )
