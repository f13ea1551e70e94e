"""The selection of tests by `make quick`, for each kind of changed path."""

from pathlib import Path, PurePath

import pytest

from testbed.quick import selected

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("proxy/wire/frames.py", {"tests/unit/proxy/wire"}),
        ("proxy/groups/consuming/tags.py", {"tests/unit/proxy/groups/consuming"}),
        ("proxy/session/publishing/confirms.py", {"tests/unit/proxy/session"}),
        ("ring/hashing.py", {"tests/unit/ring/test_hashing.py"}),
        ("tests/unit/proxy/session/wire.py", {"tests/unit/proxy/session"}),
        ("tests/unit/test_docs.py", {"tests/unit/test_docs.py"}),
        ("tests/unit/test_that_was_deleted.py", set()),
        ("docs/index.md", {"tests/unit/test_docs.py"}),
        ("deploy/hpa.yaml", {f"tests/unit/test_{name}.py" for name in ("chart", "deploy", "service")}),
        (".github/workflows/ci.yml", {"tests/unit/test_deploy.py"}),
        ("pipeline/data/tables.py", set()),
        ("testbed/quick.py", {"tests/unit/test_quick.py"}),
        ("testbed/demo/race.py", set()),
        ("setup.py", set()),
    ],
)
def test_a_changed_path_has_the_tests_of_its_folder(path: str, tests: set[str]) -> None:
    assert selected(PurePath(path), ROOT) == tests
