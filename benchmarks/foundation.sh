#!/usr/bin/env bash
# The two models that the foundation is held to on a GPU, native beside transformers on the same dummy weights: each case passes the
# check against transformers in float32 before its speed is printed. Writes tables and records to the folder given.
#   benchmarks/foundation.sh FOLDER
set -u
out=${1:?usage: benchmarks/foundation.sh FOLDER}
python=${PYTHON:-python3}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"
nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit --format=csv,noheader
"$python" -m inferometer devices --calibrate > "$out/devices.txt"
sed -n '/^Here/,$p' "$out/devices.txt"
bench() {
    local name=$1
    shift
    timeout 150 "$python" -m inferometer bench "$@" --weights dummy --backend native --backend hf --runs 3 \
        --output "$out/$name.jsonl" > "$out/$name.md" 2> "$out/$name.log"
    echo "== $name: exit $?"
    grep -E '^\| (Step|Prefill|Decode|Forward|  )|native / hf|checked|batch size' "$out/$name.md" | cut -c1-190
    tail -n 3 "$out/$name.log"
}
bench opt-1.3b-bfloat16 opt-1.3b --dtype bfloat16 --sequence-length 512 --decode-length 32 --batch-size 1 --batch-size 8 --batch-size 32
bench opt-1.3b-float32 opt-1.3b --dtype float32 --sequence-length 512 --decode-length 32 --batch-size 1 --batch-size 8
bench bloomz-7b1-bfloat16 bloomz-7b1 --dtype bfloat16 --sequence-length 512 --decode-length 16 --batch-size 1 --batch-size 8
bench bloomz-7b1-float32 bloomz-7b1 --dtype float32 --sequence-length 512 --decode-length 16 --batch-size 1
bench opt-1.3b-forward opt-1.3b --dtype float16 --sequence-length 1024 --batch-size 16 --forward-only --loss
