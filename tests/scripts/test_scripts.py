"""The pure parts of the page scripts, tested by Node's own test runner."""

import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent


def test_the_scripts_of_the_pages_pass_their_own_tests() -> None:
    node = shutil.which("node")
    assert node, (
        "the scripts of the pages are tested with Node.js, which is not installed; on Debian: apt-get install nodejs"
    )
    files = sorted(map(str, FOLDER.glob("*.test.js")))
    result = subprocess.run([node, "--test", *files], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
