"""What a process of kvgate imports: a gateway keeps it in memory for as long as it runs."""

import subprocess
import sys
import textwrap

import pytest

ALWAYS_LATER = {
    "dns", "engine.diagnosis", "engine.plan", "engine.supervisor", "gateway.advice", "gateway.commands",
    "gateway.serve.reload", "gateway.simulation", "huggingface_hub", "numpy", "pydantic_settings", "pygments", "redis",
    "rich", "torch", "transformers", "yaml",
}  # fmt: skip
"""Packages and modules that no gateway needs before something rare happens."""
WHOLE = "from gateway.runtime.importing import COLOURS, Importing\n    with Importing(COLOURS): import gateway.serve."
ROLES = {
    "the command line": (f"{WHOLE}command", ALWAYS_LATER),
    "a gateway": (f"{WHOLE}command, gateway.app.application", ALWAYS_LATER),
    "an owner": (
        f"{WHOLE}lifetime, gateway.app.owner_process",
        ALWAYS_LATER | {"fastapi.applications", "gateway.app.application", "tokenizers"},
    ),
    "a reload": (
        "from gateway.cli import command_line; command_line('reload')",
        {"gateway.config", "httpx", "pydantic"},
    ),
    "one that counts": ("import gateway.__main__, gateway.serve.child", {"gateway.config", "httpx", "pydantic"}),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_process_imports_what_its_role_needs(role):
    imports, later = ROLES[role]
    code = f"""
    import sys
    {imports}
    later = {sorted(later)}
    found = [name for name in later if name in sys.modules]
    sys.exit(f"imported at once: {{', '.join(found)}}" if found else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrong_arguments_are_told():
    command = [sys.executable, "-m", "gateway.serve.child", "--owner", "x"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, "invalid int value" in done.stderr) == (2, True)
