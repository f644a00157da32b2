"""What the README shows runs as shown."""

import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RECORD = (ROOT / "train" / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs(snippet):
    exec(compile(snippet, "README.md", "exec"), {})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 3


def test_every_command_in_the_readme_exists():
    modules = set(re.findall(r"python -m ([\w.]+)", README))
    assert modules >= {"train", "train.translation"}
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_the_line_for_slurm_makes_a_tf_config():
    block = next(b for b in re.findall(r"```\n(.*?)```", RECORD, re.DOTALL) if "srun" in b)
    functions = "srun() { shift; SLURM_PROCID=1 \"$@\"; }; scontrol() { printf 'n1\\nn2\\n'; }; "
    functions += "python() { printenv TF_CONFIG; }; export -f scontrol python; "
    done = subprocess.run(["bash", "-c", functions + block], capture_output=True, text=True)
    assert json.loads(done.stdout) == {
        "cluster": {"worker": ["n1:12345", "n2:12345"]},
        "task": {"type": "worker", "index": 1},
    }


def test_ci_runs_the_test_command_of_the_readme():
    command = "pip install -e '.[test]' && pytest"
    assert command in README and command in (ROOT / ".ci" / "run").read_text()


def test_every_flag_in_the_readme_exists():
    sources = " ".join(path.read_text() for path in (ROOT / "train").glob("*.py"))
    known = set(re.findall(r'"(--[a-z-]+)"', sources))
    fields = re.findall(
        r"^    (\w+): .+? = (?:setting|required|probability)\(", sources, re.MULTILINE
    )
    known |= {"--" + name.replace("_", "-") for name in fields}
    fenced = " ".join(re.findall(r"```\n(.*?)```", README, re.DOTALL))
    used = set(re.findall(r"(--[a-z-]+)", fenced))
    assert used and used <= known
