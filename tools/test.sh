#!/usr/bin/env bash
# Runs the test suite in a virtual environment of its own, set up here when it is missing or out of date.
#
#     bash tools/test.sh                                    everything, in .venv
#     bash tools/test.sh -m fast tests/ptx                  arguments go to pytest
#     bash tools/test.sh --deep                             every case of every test, many examples: the nightly run
#     PYTHON=python3.13 VENV=.venv-3.13 bash tools/test.sh  another Python, in an environment of its own; EXTRA as there
#
# No GPU is needed; tests that want one skip themselves. `.ci/run` runs the first command, too. With everything installed
# (the extra `ci`, on Linux), only a test that needs a GPU, a browser, PyTorch or a recording may skip (`--complete`).
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/install.sh
unset PYTHONDONTWRITEBYTECODE  # the tests start kernrec hundreds of times: it is compiled once
if [ "${1:-}" = --deep ]; then
    shift
    export KERNREC_TEST_PROFILE=deep
fi
complete=
[ "$(uname)" != Linux ] || [ "${EXTRA:-ci}" != ci ] || complete=--complete
exec "${VENV:-.venv}/bin/python" -m pytest -n 3 --dist worksteal -rsfE --durations 25 --durations-min 3 $complete "$@"
