import json
import subprocess
import sys

import numpy as np
import pytest

import calmix.metrics
import calmix.recalibration
from calmix.errors import InputError
from calmix.recalibration import Histogram, Isotonic, Temperature, VectorScaling, from_json


@pytest.mark.parametrize("kind", [Temperature, VectorScaling, Isotonic, Histogram])
def test_every_kind_is_fitted_called_written_and_read_alike(kind, draw):
    logits, _, labels = draw(0, 200)
    fitted = kind.fit(logits * 2, labels)
    probs = fitted(logits * 2)
    assert probs.dtype == np.float64
    assert probs.sum(1) == pytest.approx(np.ones(200))
    again = from_json(json.loads(json.dumps(fitted.to_json())))
    assert again == fitted
    assert np.array_equal(again(logits * 2), probs)


def test_an_unknown_kind_is_an_error():
    with pytest.raises(InputError, match="kind is 'pickle'"):
        from_json({"kind": "pickle"})


def test_public_names_resolve_and_nothing_else_does():
    for module in (calmix.metrics, calmix.recalibration, calmix.calibration):
        for name in module.__all__:
            assert callable(getattr(module, name))
        assert not hasattr(module, "no_such_metric")


def test_importing_the_names_does_not_import_torch():
    code = "import sys, calmix.metrics, calmix.recalibration; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
