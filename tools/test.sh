#!/usr/bin/env bash
# Runs the test suite in a virtual environment of its own (.venv), set up here when it is missing or out of date.
# Arguments go to pytest. No GPU is needed; tests that want one skip themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
# Editable, so that later runs test what the checkout holds now; again only when the requirements changed.
if ! cmp -s pyproject.toml .venv/installed.toml; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
    cp pyproject.toml .venv/installed.toml
fi
exec .venv/bin/python -m pytest -n 2 "$@"
