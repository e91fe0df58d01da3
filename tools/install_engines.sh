#!/usr/bin/env bash
# Adds vLLM and SGLang to an environment that has the extra `nightly`, without a GPU: the packages themselves, and of what
# they require the part that their readers of tuned files and their Triton kernels import.
#
#     EXTRA=nightly bash tools/install.sh && bash tools/install_engines.sh
#     EXTRA=nightly bash tools/test.sh tests/recommender/serving tests/triton tests/run tests/interop
#
# tests/recommender/serving/test_engine_readers.py then has each file that an audit writes read by the engine's own module.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${VENV:-.venv}/bin/python
imported=(
    aiohttp cachetools cbor2 cloudpickle dill einops fastapi ipython llguidance msgspec openai openai-harmony orjson
    partial-json-parser prometheus-client py-cpuinfo pybase64 pyzmq regex sentencepiece "torchvision==0.28.*" transformers
    uvloop xgrammar
)
"$python" -m pip install --quiet --disable-pip-version-check "${imported[@]}" "torch==2.13.*"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps vllm==0.33.0 sglang==0.5.23
"$python" -c "import torchvision" 2>/dev/null || {
    echo "torchvision does not run with this build of torch: install both from one index" >&2
    exit 1
}
