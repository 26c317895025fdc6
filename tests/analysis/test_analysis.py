"""What a run's folder says, from a real run: the same pages judged as backing and as a setting."""

import re
import sys
from pathlib import Path

import pytest

import hugewise
from hugewise.model.pages import page_flags_readable
from hugewise.report.reasons import in_words
from hugewise.session import session
from hugewise.study.load import parse
from tests.build import known
from tests.report import told
from tests.requirements import need, need_root

# Memory as a database's buffers are: shared, which `enabled=always` gives no huge page.
_PROGRAM = "import mmap; held = mmap.mmap(-1, 64 << 20); [held.write(bytes(1 << 20)) for n in range(64)]"
STUDY = """
format = 1
name = "judged"
policies = [
    { name = "base-set", from = "base", judged = "setting" },
    "thp",
    { name = "thp-set", from = "thp", judged = "setting" },
]
confidence = 0.9

[budget]
blocks = 4

[between]
settle = "0ms"

[[workload]]
name = "command"
label = "shared"
parameters = { argv = ["PYTHON", "-c", "PROGRAM"] }

[[workload]]
name = "command"
parameters = { argv = ["sh", "-c", "/bin/true; exit 0"] }
"""


@pytest.mark.usefixtures("unchanged")
def test_a_setting_has_its_verdict_where_the_backing_has_none(tmp_path: Path) -> None:
    need_root()
    need(page_flags_readable(), "physical page flags (CAP_SYS_ADMIN)")
    text = STUDY.replace("PYTHON", sys.executable).replace("PROGRAM", _PROGRAM)
    results = hugewise.open_results(session.run(parse(text, "judged.toml"), tmp_path).path)
    shared, early = results.cells
    thp, setting = shared.comparisons
    assert (thp.judged, thp.verdict, thp.n) == ("backing", "none", 0)
    assert "pages of thp not delivered" in in_words(thp.reason)
    assert (setting.judged, setting.n) == ("setting", 4)
    assert setting.verdict != "none"
    assert setting.delivered_share is not None
    assert setting.delivered_share < 0.5  # of its heap alone, and what khugepaged has joined meanwhile
    # The program gives its memory back before it ends: the proof is by counters, which have other programs' faults too.
    assert setting.baseline_judged == "setting"
    assert 0.5 < known(setting.baseline_share) <= 1
    assert [(arm.judged, arm.undelivered) for arm in shared.arms] == [("setting", 0), ("backing", 4), ("setting", 0)]
    said = told.text(results)
    assert "Judges the setting of thp-set: " in said
    assert re.search(
        r"Held against the setting of base-set: [\d.]+% of the named memory was backed as promised\.", said
    )
    # A setting's pages are looked at as thoroughly as those that are demanded: by a twin where processes left early.
    proofs = {attempt.arm: attempt.delivery.proof for attempt in results.attempts if attempt.cell == early.cell}
    assert proofs == dict.fromkeys(("base-set", "thp", "thp-set"), "twin")
