#!/usr/bin/env bash
# Trains a draft by a config, with the settings of a run from the environment:
#
#   RUN_NAME=domino-b16 OUTPUT_ROOT=runs NUM_TRAIN_STEPS=500 SAVE_INTERVAL=250 MAX_CHECKPOINTS=1 \
#   SAVE_OPTIMIZER=false PROCESSES=2 training/run.sh CONFIG [key=value ...]
#
# The run's folder is OUTPUT_ROOT/RUN_NAME; the same command again resumes it. PROCESSES: ranks on
# this machine, each on a GPU of its own where the config says cuda. Whatever is not set comes from
# the config; key=value wins over both.
set -euo pipefail

if [[ $# -lt 1 ]]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
config=$1
shift
name=$(basename "$config")
settings=("output=${OUTPUT_ROOT:-runs}/${RUN_NAME:-${name%.*}}")  # no TOML value: taken as text
[[ -z ${NUM_TRAIN_STEPS:-} ]] || settings+=("steps=$NUM_TRAIN_STEPS")
[[ -z ${SAVE_INTERVAL:-} ]] || settings+=("save_interval=$SAVE_INTERVAL")
[[ -z ${MAX_CHECKPOINTS:-} ]] || settings+=("max_checkpoints=$MAX_CHECKPOINTS")
[[ -z ${SAVE_OPTIMIZER:-} ]] || settings+=("save_optimizer=$SAVE_OPTIMIZER")

python=${PYTHON:-python}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root:$root/protos/gen:$root/kernels${PYTHONPATH:+:$PYTHONPATH}"
if [[ ${PROCESSES:-1} -gt 1 ]]; then
    exec "$python" -m torch.distributed.run --standalone --nproc-per-node="$PROCESSES" \
        -m domino_cli train "$config" "${settings[@]}" "$@"
fi
exec "$python" -m domino_cli train "$config" "${settings[@]}" "$@"
