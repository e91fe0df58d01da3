#!/usr/bin/env bash
# Runs the test suite in a virtual environment of its own, set up here when it is missing or out of date.
#
#     bash tools/test.sh                                    everything, in .venv
#     bash tools/test.sh -m fast tests/ptx                  arguments go to pytest
#     bash tools/test.sh --deep                             every case of every test, many examples: the nightly run
#     PYTHON=python3.13 VENV=.venv-3.13 bash tools/test.sh  another Python, in an environment of its own; EXTRA as there
#
# No GPU is needed; tests that want one skip themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/install.sh
unset PYTHONDONTWRITEBYTECODE  # the tests start kernrec hundreds of times: it is compiled once
if [ "${1:-}" = --deep ]; then
    shift
    export KERNREC_TEST_PROFILE=deep
fi
exec "${VENV:-.venv}/bin/python" -m pytest -n 2 --dist worksteal "$@"
