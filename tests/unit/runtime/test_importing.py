import gc
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

from gateway.runtime.importing import Importing


def test_garbage_is_looked_for_again_whatever_comes_of_the_imports() -> None:
    with pytest.raises(ModuleNotFoundError), Importing():
        import_module("gateway.nowhere")
    assert gc.isenabled()


def test_packages_can_be_as_if_not_installed_until_it_is_left() -> None:
    with Importing(without=["wave", "sys"]):
        with pytest.raises(ModuleNotFoundError):
            import_module("wave")
        assert import_module("sys") is sys, "what is there already stays"
    assert import_module("wave").__name__ == "wave"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("gateway.__main__", ["--version"]),
        ("gateway.__main__", ["serve"]),
        ("gateway.serve.child", ["--help"]),
    ],
)
def test_a_process_looks_for_no_garbage_among_what_it_imports(module: str, arguments: list[str]) -> None:
    code = f"""
    import gc, sys
    looked = []
    gc.callbacks.append(lambda phase, _: looked.append(len(sys.modules)) if phase == "start" else None)
    from {module} import main
    sys.argv[1:] = {arguments}
    before = len(looked)
    try:
        main()
    except SystemExit:
        assert gc.isenabled()
        assert gc.get_freeze_count() > 50_000
        found = [modules for modules in looked[before:] if modules < len(sys.modules) - 100]
        sys.exit(f"after so many modules: {{found}}" if found else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
