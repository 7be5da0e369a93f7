import pytest


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A folder for what takes long to make."""
    return tmp_path_factory.mktemp("taught")
