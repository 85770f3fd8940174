from __future__ import annotations

import pytest

from workbench.panels.study_fields import MORE_FIELDS
from workbench.study.sample.sampling import PRUNERS, SAMPLERS


@pytest.mark.parametrize(("path", "names"), [("sampler.name", SAMPLERS), ("pruner.name", PRUNERS)])
def test_whatever_a_study_file_may_name_is_offered(path: str, names: dict[str, object]) -> None:
    (field,) = [field for field in MORE_FIELDS if field.path == path]
    assert set(field.choices) == set(names)
