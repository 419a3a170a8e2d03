import re
import subprocess
import sys
from pathlib import Path

import torch


def test_importing_the_package_costs_no_torch():
    root = Path(__file__).parents[2] / "src"
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import calmix.dynamics.values; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_page_on_dynamics_can_be_run_as_it_stands(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "dynamics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    torch.manual_seed(0)
    hidden = torch.randn(40, 4)
    train_set = torch.utils.data.TensorDataset(hidden, (hidden[:, 0] > 0).long(), torch.arange(40))
    model = torch.nn.Linear(4, 2)
    names = {
        "torch": torch,
        "train_set": train_set,
        "loader": torch.utils.data.DataLoader(train_set, batch_size=8, shuffle=True),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "device": "cpu",
        "hidden": hidden[:8],
        "high": torch.arange(8) % 2 == 0,
    }
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 5
    assert names["dynamics"].observations.tolist() == [3] * 40
    assert len(names["issues"]) == 40
