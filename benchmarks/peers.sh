#!/usr/bin/env bash
# Native beside transformers on one GPU, same dummy weights, bfloat16: prefill of 16 x 1024 tokens, and 8 prompt tokens with 100 new at
# growing batches. Writes tables, and all records to FILE.
#   benchmarks/peers.sh FILE
set -u
file=${1:?usage: benchmarks/peers.sh FILE}
python=${PYTHON:-python3}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit --format=csv,noheader
"$python" -m inferometer devices --calibrate | sed -n '/^Here/,$p'
"$python" - > "${file%.jsonl}.calibration.json" << 'END'
import json
from inferometer.hardware.calibration import load_calibrations
from inferometer.hardware.detect import detect
print(json.dumps(next(iter(load_calibrations(detect().fingerprint).devices.values())).to_json(), indent=1))
END
bench() {
    timeout 150 "$python" -m inferometer bench "$@" --weights dummy --dtype bfloat16 --output "$file.part" | grep -E '^\| (Step|Prefill|Decode|  )|checked' | cut -c1-190
    cat "$file.part" >> "$file"
    rm "$file.part"
}
both=(--backend native --backend hf)
bench doc004-1.3b "${both[@]}" --sequence-length 8 --decode-length 100 --batch-size 64 --batch-size 1024 --runs 3 --no-energy
bench opt-1.3b "${both[@]}" --sequence-length 1024 --decode-length 1 --batch-size 16 --runs 5 --no-energy
bench opt-6.7b "${both[@]}" --sequence-length 1024 --decode-length 1 --batch-size 16 --runs 5 --no-energy
bench bloomz-7b1 --sequence-length 1024 --decode-length 1 --batch-size 8 --runs 5 --no-energy
