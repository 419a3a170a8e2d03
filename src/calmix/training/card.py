"""The model card: what the checkpoint is, how it was made, and how far its confidence can be trusted."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from calmix._version import __version__

__all__ = ["model_card"]

# Label names and model names come from users' files: nothing of theirs may end a code span or a table cell.
_CARD = """\
---
library_name: transformers
tags:
- text-classification
- calibration
- calmix
---

# {{ kind }} trained with calmix

{{ "Fine-tuned from" if metrics.best_epoch else "A head fitted to" }} `{{ config.model | code }}` \
with the recipe `{{ config.recipe | code }}`
{%- if config.options %} ({% for k, v in config.options.items() %}{{ k }} = `{{ v | code }}`
{%- if not loop.last %}, {% endif %}{% endfor %}){% endif %}, \
{{ metrics.rows.train }} training rows, seed {{ config.seed }}, \
{% if metrics.best_epoch %}best of {{ epochs }} epochs: {{ metrics.best_epoch }}{% elif epochs %}\
better than each of {{ epochs }} epochs of fine-tuning{% else %}without fine-tuning{% endif %}.

A temperature of {{ "%.4g" | format(metrics.temperature) }}, fitted on {{ metrics.rows.dev }} dev rows, is already \
inside the last layer's weights: softmax of the logits gives calibrated probabilities, with no extra step.
{% if labels %}
Labels: {% for name in labels %}`{{ name | code }}`{% if not loop.last %}, {% endif %}{% endfor %}.
{% endif %}
## Figures

ECE and OE over {{ config.bins }} equal-width bins, in percent; *raw* is before temperature scaling.

| data | rows | accuracy | ECE | ECE raw | OE | NLL | NLL raw | Brier |
|---|---|---|---|---|---|---|---|---|
{% for name, f in metrics.splits.items() -%}
| {{ name | cell }} | {{ f.after.n }} | {{ pct(f.after.accuracy) }} | {{ pct(f.after.ece) }} | {{ pct(f.before.ece) }} \
| {{ pct(f.after.oe) }} | {{ num(f.after.nll) }} | {{ num(f.before.nll) }} \
| {{ num(f.after.brier) }} |
{% endfor %}
The dev rows chose the epoch and the temperature, so their figures flatter.
{% if metrics.notes %}
## What to know about the data

{% for note in metrics.notes -%}
- {{ note | cell }}
{% endfor %}{% endif %}
## Use

```python
import calmix
classifier = calmix.load("path/to/this/folder")
classifier.predict_proba(["a text"])
```

Made with calmix {{ version }}.
"""


def model_card(config: Mapping[str, Any], metrics: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """Return the card as Markdown."""
    kind = "Text classifier" if labels else "Multiple-choice model"
    return _template().render(
        config=config,
        metrics=metrics,
        labels=labels,
        epochs=sum(entry["epoch"] > 0 for entry in metrics["epochs"]),
        kind=kind,
        version=__version__,
        pct=lambda x: "–" if x is None else f"{100 * x:.2f}",
        num=lambda x: "–" if x is None else f"{x:.4f}",
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["code"] = lambda value: _line(value).replace("`", "'")
    environment.filters["cell"] = lambda value: _line(value).replace("|", "\\|").replace("<", "&lt;")
    return environment.from_string(_CARD)


def _line(value: Any) -> str:
    return " ".join(str(value).split())
