#!/bin/bash
# What detrain does on TPUs, or whatever devices JAX has here, in ten minutes at most: which computations repeat, is a
# killed and resumed training exact over all devices, is an injected fault replayed to the bit, what does a run cost.
# Needs JAX for the device, scikit-learn and detrain; what was said goes into $OUT (default: tpu-figures).
#
#     benchmarks/tpu.sh          on a host of TPUs
#     benchmarks/tpu.sh --cpu    on eight devices of the CPU: to see that the script runs
set -u
cd "$(dirname "$0")/.."
OUT=$(mkdir -p "${OUT:-tpu-figures}" && cd "${OUT:-tpu-figures}" && pwd)
PYTHON=${PYTHON:-python}
DETRAIN="$PYTHON -m detrain"
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
FAILED=0
[ "${1:-}" = --cpu ] && export JAX_PLATFORMS=cpu XLA_FLAGS="--xla_force_host_platform_device_count=8 ${XLA_FLAGS:-}"
DEVICES=$($PYTHON -c "import jax; print(jax.device_count())") || exit 2
PROGRAM="examples/digits/jax_train.py --devices $DEVICES"

say() { echo "== $(date +%T) $*"; }
# Run a command into $OUT/NAME.txt, show the end of what it says, and note whether it says what it should.
step() {
    local name=$1 expected=$2; shift 2
    timeout 240 "$@" >"$OUT/$name.txt" 2>&1
    grep -q "$expected" "$OUT/$name.txt" || { echo "FAILED: $name does not say '$expected'"; tail -5 "$OUT/$name.txt"; FAILED=1; }
    tail -2 "$OUT/$name.txt"
}
seconds() { $PYTHON -c "import time; print(time.time())"; }

say "$DEVICES devices: $($PYTHON -c 'import jax; print(jax.devices()[0].device_kind, jax.__version__)')"
say "doctor: which computations repeat"
step doctor "same bits: in" $DETRAIN doctor --framework jax --repeats 4
say "verify: run twice, killed at two cuts and resumed"
step verify "^EXACT" $DETRAIN verify examples/digits/jax_train.py --epochs 1 --devices "$DEVICES"
say "a fault, and the same again"
step inject "outcome" $DETRAIN inject --ckpt "$WORK/faults" --model RD --site '*dot_general*' --stage backward --at 0:7 --seed 4 --until +5 \
    --out "$WORK/record.json" $PROGRAM --epochs 1
step replay "^IDENTICAL" $DETRAIN replay --ckpt "$WORK/faults" "$WORK/record.json" $PROGRAM --epochs 1
say "what a run costs: bare, and under detrain with a checkpoint each 20 batches, three times in turn"
for turn in 1 2 3; do
    start=$(seconds); timeout 120 $DETRAIN run --bare $PROGRAM --epochs 3 >/dev/null 2>&1; middle=$(seconds)
    timeout 120 $DETRAIN run --ckpt "$WORK/run$turn" --every 20b $PROGRAM --epochs 3 >/dev/null 2>&1
    echo "$start $middle $(seconds)"
done | awk '{printf "bare %.1f s, under detrain %.1f s\n", $2 - $1, $3 - $2}' | tee "$OUT/cost.txt"
say "done: $OUT"
exit $FAILED
