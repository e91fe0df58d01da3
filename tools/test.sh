#!/usr/bin/env bash
# Runs the test suite in a virtual environment of its own, set up here when it is missing or out of date.
#
#     bash tools/test.sh                                    everything, in .venv
#     bash tools/test.sh -m fast tests/ptx                  arguments go to pytest
#     PYTHON=python3.13 VENV=.venv-3.13 bash tools/test.sh  another Python, in an environment of its own
#
# No GPU is needed; tests that want one skip themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Editable, so that later runs test what the checkout holds now; again only when the requirements changed.
if ! cmp -s pyproject.toml "$venv/installed.toml"; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
    cp pyproject.toml "$venv/installed.toml"
fi
exec "$venv/bin/python" -m pytest -n 2 "$@"
