#!/usr/bin/env bash
# Sets up a virtual environment with everything that working on kernrec needs; nothing to do where it is up to date.
#
#     bash tools/install.sh                                    .venv
#     PYTHON=python3.13 VENV=.venv-3.13 bash tools/install.sh  another Python, in an environment of its own
#     EXTRA=test ...                                           with the packages of another extra than `ci` (Linux) or `dev`
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
extra=${EXTRA:-$([ "$(uname)" = Linux ] && echo ci || echo dev)}  # Ray and Triton have wheels for Linux
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Editable, so that later runs test what the checkout holds now; again only when the requirements or the engine's sources
# changed.
stamp() {
    echo "# $extra"
    cat pyproject.toml hatch_build.py
    find engine -name '*.h' -o -name '*.cpp' | sort | xargs cat kernrec/util/engine_file.py
}
# Print the packages of an extra, with those of the extras that it names.
packages() {
    "$venv/bin/python" - "$extra" << 'END'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = [f"kernrec[{sys.argv[1]}]"]
for name in wanted:
    if extras := re.fullmatch(r"kernrec\[(.*)\]", name):
        wanted += [each for extra in extras[1].split(",") for each in project["optional-dependencies"][extra]]
    else:
        print(name)
print(*project["dependencies"], sep="\n")
END
}
if ! cmp -s <(stamp) "$venv/installed.txt"; then
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    # Compile the engine while one core installs the packages.
    "${pip[@]}" --no-deps --editable . &
    trap 'kill $! 2> /dev/null || true' EXIT
    packages | "${pip[@]}" --requirement /dev/stdin
    wait $!
    trap - EXIT
    stamp > "$venv/installed.txt"
fi
