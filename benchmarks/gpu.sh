#!/bin/bash
# What detrain does on a GPU, in ten minutes at most: is a killed and resumed training exact, what does training wait
# for, what do runs cost. Needs PyTorch with CUDA and detrain; the figures go into $OUT (default: gpu-figures).
#
#     benchmarks/gpu.sh          on the card
#     benchmarks/gpu.sh --cpu    small networks on the CPU: to see that the script runs
#
# Each training is run bare twice (does it repeat at all on this device?), under detrain, and killed and resumed under
# detrain; `*.bits` say how many bits of the last state differ from the bare one's.
set -u
cd "$(dirname "$0")/.."
OUT=$(mkdir -p "${OUT:-gpu-figures}" && cd "${OUT:-gpu-figures}" && pwd)
PYTHON=${PYTHON:-python}
DETRAIN="$PYTHON -m detrain"
NETWORKS=benchmarks/gpu_networks.py
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
FAILED=0

if [ "${1:-}" = --cpu ]; then
    DIGITS="digits --device cpu --steps 12 --batch 16 --every 5"
    RESNET="resnet --device cpu --small --steps 8 --batch 4 --every 3 --workers 1"
    SIZES="20"; WIDE="--device cpu --steps 15 --epochs 1 --batch 4 --every 5 --workers 0"
else
    $PYTHON -c "import torch; assert torch.cuda.is_available(); print(torch.cuda.get_device_name())" || exit 2
    DIGITS="digits --steps 100 --every 30"
    RESNET="resnet --steps 30 --batch 32 --every 10 --workers 8"
    SIZES="400 2000"; WIDE="--steps 60 --epochs 1 --every 10 --workers 0"
fi

say() { echo "== $(date +%T) $*"; }

# Run a training to its end, into $OUT/$1.pt and .json: `training NAME HOW WORD...`.
training() {
    local state="$OUT/$1" how=$2; shift 2
    case $how in
        bare) STATE=$state timeout 120 $DETRAIN run --bare $NETWORKS "$@" ;;
        *) STATE=$state timeout 120 $DETRAIN run --ckpt "$how" --every "${EVERY}b" $NETWORKS "$@" ;;
    esac >"$state.log" 2>&1 || { echo "FAILED: $state.log"; tail -5 "$state.log"; FAILED=1; }
}

# Compare two last states: `compare NAME ONE OTHER`.
compare() { $PYTHON $NETWORKS compare "$OUT/$2.pt" "$OUT/$3.pt" 2>&1 | tail -1 | tee "$OUT/$1.bits"; }

# Whole, killed and resumed: `exact NAME STEP WORD...`, killed before the step.
exact() {
    local name=$1 die=$2; shift 2
    say "$name: bare, twice"
    training "$name-bare" bare "$@"; training "$name-again" bare "$@"
    compare "$name-repeated" "$name-bare" "$name-again"
    say "$name: under detrain, then killed before step $die and resumed"
    training "$name-detrain" "$WORK/$name-whole" "$@"
    compare "$name-whole" "$name-bare" "$name-detrain"
    STATE=$OUT/$name-killed DIE_AT=$die timeout 120 $DETRAIN run --ckpt "$WORK/$name" --every "${EVERY}b" $NETWORKS "$@" \
        >"$OUT/$name-killed.log" 2>&1
    [ $? = 137 ] || { echo "FAILED: it was not killed"; FAILED=1; }
    cp -r "$WORK/$name" "$WORK/$name-left"
    training "$name-resumed" "$WORK/$name" "$@"
    grep -h "resuming" "$OUT/$name-resumed.log"
    compare "$name-resumed" "$name-bare" "$name-resumed"
}

say "doctor"
timeout 200 $DETRAIN doctor --framework torch --repeats 4 >"$OUT/doctor.txt" 2>&1; tail -12 "$OUT/doctor.txt"

EVERY=$(echo "$DIGITS" | grep -o "every [0-9]*" | cut -d" " -f2)
STEPS=$(echo "$DIGITS" | grep -o "steps [0-9]*" | cut -d" " -f2)
exact digits $((STEPS * 3 / 2)) $DIGITS

EVERY=$(echo "$RESNET" | grep -o "every [0-9]*" | cut -d" " -f2)
STEPS=$(echo "$RESNET" | grep -o "steps [0-9]*" | cut -d" " -f2)
exact resnet $((STEPS * 3 / 2)) $RESNET
grep -q "^0 of" "$OUT/resnet-repeated.bits" || { say "the pooling of resnet does not repeat: without it"; exact resnet-conv $((STEPS * 3 / 2)) $RESNET --pool conv; }

if [ "${1:-}" != --cpu ]; then
    say "a checkpoint of the card where none is seen: refused, and on the CPU"
    CUDA_VISIBLE_DEVICES= STATE=$OUT/digits-off timeout 60 $DETRAIN run --ckpt "$WORK/digits-left" --every 30b $NETWORKS $DIGITS \
        >"$OUT/digits-off.log" 2>&1
    [ $? = 77 ] || { echo "FAILED: not refused"; FAILED=1; }
    CUDA_VISIBLE_DEVICES= STATE=$OUT/digits-mapped timeout 120 $DETRAIN run --ckpt "$WORK/digits-left" --every 30b \
        --allow-environment --map-device cpu $NETWORKS $DIGITS >"$OUT/digits-mapped.log" 2>&1 || { echo "FAILED: mapped"; FAILED=1; }
    grep -h "detrain:" "$OUT/digits-off.log" "$OUT/digits-mapped.log"
fi

for SIZE in $SIZES; do
    say "stall: a state of $SIZE MB"
    EVERY=$(echo "$WIDE" | grep -o "every [0-9]*" | cut -d" " -f2)
    training "wide-$SIZE-bare" bare wide $WIDE --megabytes "$SIZE"
    training "wide-$SIZE-detrain" "$WORK/wide-$SIZE" wide $WIDE --megabytes "$SIZE"
    SAVE=1 training "wide-$SIZE-torch.save" bare wide $WIDE --megabytes "$SIZE"
    compare "wide-$SIZE-whole" "wide-$SIZE-bare" "wide-$SIZE-detrain"
done
$PYTHON $NETWORKS report "$OUT"
rm -f "$OUT"/*.pt "$OUT"/*.saved
say "done: $OUT/figures.json"
exit $FAILED
