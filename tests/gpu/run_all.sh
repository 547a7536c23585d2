#!/usr/bin/env bash
# Everything that needs a Hopper GPU, in about 15 minutes: tests/gpu/run_all.sh [PYTHON]
# Needs nvcc, cmake, ninja, and a Python with the project's dependencies (.[dev]) and Triton. Leaves build/gpu, engine/_native*.so
# and a log per step in build/gpu-logs. Prints one line a step, the measured
# lines below it; exit code 1 when a step failed. STEPS="decode prefill" runs the build and these alone.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-$(command -v python3)}
logs=$PWD/build/gpu-logs
mkdir -p "$logs"
export PYTHONPATH=$PWD
failed=0
cut="s/^/    /"

step() { # NAME SECONDS PATTERN COMMAND...: runs it, prints the outcome and the lines that match
  local name=$1 limit=$2 pattern=$3 begun=$SECONDS outcome=ok
  shift 3
  [[ $name == build || -z ${STEPS:-} || " ${STEPS} " == *" $name "* ]] || return 0
  timeout "$limit" "$@" > "$logs/$name.log" 2>&1 || { outcome="FAILED ($?), see $logs/$name.log" failed=1; }
  printf '%-12s %4s s  %s\n' "$name" "$((SECONDS - begun))" "$outcome"
  grep -E "$pattern" "$logs/$name.log" | tail -24 | sed "$cut"
}
build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" && cmake --build build/gpu && cp build/gpu/_native*.so engine/
}
bench=("$python" -P -m pointcode_local.engine.bench.gpu)

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "no NVIDIA GPU answers"; exit 1; }
step build 300 'error' build
pytest=("$python" -P -m pytest -q -n 0 -m gpu)
step tests 300 'passed|failed|^FAILED|^ERROR|ratio' "${pytest[@]}" -s tests/gpu --ignore tests/gpu/test_opcodes.py --ignore tests/gpu/test_prefill.py
step opcodes 60 'passed|failed|^FAILED|^ERROR' "${pytest[@]}" tests/gpu/test_opcodes.py
# One step of each kernel on the tiny model under the memory checker.
step memcheck 120 'ERROR SUMMARY|passed|failed|Invalid' compute-sanitizer --tool memcheck --error-exitcode 1 \
  "${pytest[@]}" tests/gpu/test_decode.py -k "fp32_reference and 129"
step decode 150 'tok/s|baseline' "${bench[@]}" decode --batch 1,2,4,8 --tokens 256 --repeats 5
step contexts 150 'tok/s|baseline' "${bench[@]}" decode --batch 1 --context 1024,32768,131072,262144 --tokens 256 --repeats 3
step orders 90 'tok/s|order' "${bench[@]}" schedule --batch 1,2,4 --tokens 64 --repeats 3
step drafts 150 'tok/s|a step of' "$python" -P -m pointcode_local.engine.bench.drafts --random-weights
step prefill 90 'tok/s' "${bench[@]}" prefill --context 8192 --repeats 3
step http 120 'loss|tokens_per_s' "$python" -P -m pointcode_local.engine.bench.serve --random-weights --json
step load 180 'GB/s| s ' "$python" -P -m tests.gpu.load_time --runs 2
# Last: kernels that hang when they are wrong; nothing comes after them.
step packed 120 'passed|failed|^FAILED|^ERROR' "${pytest[@]}" tests/gpu/test_prefill.py
exit "$failed"
