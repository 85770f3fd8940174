from __future__ import annotations

import pytest

from workbench.panels.study_form import study_fields
from workbench.study.sample.sampling import PRUNERS, SAMPLERS


@pytest.mark.parametrize(("path", "names"), [("sampler.name", SAMPLERS), ("pruner.name", PRUNERS)])
def test_whatever_a_study_file_may_name_is_offered(path: str, names: dict[str, object]) -> None:
    assert set(study_fields()[path].choices) == set(names)
