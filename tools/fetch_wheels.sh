#!/usr/bin/env bash
# Downloads into wheels/ (which git ignores) what a machine without network needs beside its own Python packages:
#     bash tools/fetch_wheels.sh [PYTHON VERSION, 3.12] [all]
# By default what a machine with CuPy, NVRTC, NVML bindings and NumPy lacks; with `all` those too.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-3.12}
packages=('duckdb>=1.2' 'typer>=0.28,<0.29')
if [ "${2:-}" = all ]; then
    packages+=('numpy>=1.26' 'cupy-cuda13x>=14' 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14'
        'nvidia-ml-py>=12.560' 'pytest>=8')
fi
platforms=()
for glibc in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
rm -rf wheels
"${PYTHON:-python3}" -m pip download --quiet --dest wheels --only-binary=:all: --implementation cp \
    --python-version "$version" "${platforms[@]}" --platform manylinux2014_x86_64 "${packages[@]}"
du -sh wheels
