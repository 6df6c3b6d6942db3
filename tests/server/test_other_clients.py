"""litellm and the `llm` command connect and say what OpenAI's client is told.

`make test-clients` installs them into an environment of their own.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import MODEL, Server

pytestmark = pytest.mark.slow

TEXT = "hello there"
LITELLM = """
import sys
import litellm

litellm.suppress_debug_info = True  # written on standard output
url, model, text = sys.argv[1:]
options = dict(model=f"openai/{model}", api_base=f"{url}/v1", api_key="unused", max_tokens=12, temperature=0)
messages = [{"role": "user", "content": text}]
whole = litellm.completion(messages=messages, **options).choices[0].message.content
chunks = litellm.completion(messages=messages, stream=True, **options)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
try:
    litellm.completion(messages=messages, **(options | {"model": "openai/other"}))
except litellm.NotFoundError as error:
    assert "no model 'other' here" in str(error)
else:
    raise AssertionError("another model was served")
sys.stdout.buffer.write(whole.encode())
"""


@pytest.fixture
def clients() -> Path:
    """Programs of the environment that has the clients."""
    folder = Path(os.environ.get("FORERUN_TEST_CLIENTS", ""))
    if not (folder / "bin" / "python").exists():
        pytest.skip("FORERUN_TEST_CLIENTS names no environment: run make test-clients")
    return folder.absolute() / "bin"


@pytest.fixture
def want(server: Server) -> str:
    messages = [{"role": "user", "content": TEXT}]
    answer = server.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, temperature=0)
    return answer.choices[0].message.content or ""


def run(command: list[str | Path], **variables: str) -> str:
    """What a program writes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    made = subprocess.run(command, env=environment | variables, capture_output=True, timeout=120)
    assert made.returncode == 0, made.stderr.decode()
    return made.stdout.decode()


def test_litellm(clients: Path, server: Server, want: str) -> None:
    # Its list of prices would be fetched from the network.
    said = run([clients / "python", "-c", LITELLM, server.url, MODEL, TEXT], LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert said == want


@pytest.mark.parametrize("stream", [True, False])
def test_llm(clients: Path, server: Server, want: str, tmp_path: Path, stream: bool) -> None:
    entry = f"- model_id: here\n  model_name: {MODEL}\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    options = [
        "-o",
        "temperature",
        "0",
        "-o",
        "max_tokens",
        "12",
        "--key",
        "unused",
        *([] if stream else ["--no-stream"]),
    ]
    said = run([clients / "llm", "prompt", "-m", "here", TEXT, *options], LLM_USER_PATH=str(tmp_path))
    assert said.removesuffix("\n") == want
