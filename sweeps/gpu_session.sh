#!/usr/bin/env bash
# One session on a GPU machine: what a step measures goes to OUT as JSON, a table of the steps'
# status is printed last. Tests, the doctor and the profile are only printed.
#
#   sweeps/gpu_session.sh OUT STEP...
#
# Steps
#   doctor, tests, controls, fla, counts, overhead, freetoken-0.1.2, freetoken-0.1.3
#   engine-tests, engine-profile, engine-speed
#   engine-greedy, engine-sampled, engine-40-layers
#   story-FAULT: a function of examples/story/faults.py, such as story-constexpr-length
#   engine-proof: every prompt up to the context's end; only for DEVICE=sim:BOARD
#   first-request: what the first request after ready pays beside later ones, on a cold and on a
#     warm Triton cache, STARTS (5) process starts of each; about 5 minutes
#   engine-overhead: the engine's decode without and with the hooks; about 1 minute
#
# Given in the environment
#   WHEELS           a folder with base/, ftdeps/, ft-0.1.2/ and ft-0.1.3/ of wheels to use without
#                    a package registry
#   JITWATCH_COMMIT  what a copy without history is a copy of; git is not asked then
#   DEVICE           where sweeps run (cuda); sim:h200 simulates them
#   KEYS_ONLY=1      simulated sweeps count keys and compile nothing but autotune candidates
#   SIMULATED        the JSON of a simulated dense run of the fla example, to compare with; on cuda
#                    the engine's and the story's sweeps are compared with the simulated result of
#                    their name
#   PAIRS            how many pairs overhead (11) and engine-overhead (33) time
#   STARTS           how many starts of each kind first-request makes (5)
#   QUICK=1          shortens fla, counts, overhead, engine-speed, first-request and
#                    engine-overhead, to try them out; no other step
#   TAIL             how many lines of each step's output are shown (40)
#   PYTHON, JOBS     the interpreter (python3); how many processes test or record at once (8)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=$(mkdir -p "$1" && cd "$1" && pwd)
shift
PY=${PYTHON:-python3}
WORK=$(mktemp -d)
JOBS=${JOBS:-8}
DEVICE=${DEVICE:-cuda}
LENGTHS=11,12,13,16,17,32,33,64,65,80,127,128,129,256,257,300,512,1000,1024,1025,2048,2049,2560
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD"
[ -n "${JITWATCH_COMMIT:-}" ] && export GIT_DIR=/nonexistent
declare -a TABLE=()

unpack() { # unpack SITE FOLDER...: install wheels, without their dependencies, into SITE
    local site=$1 folder
    shift
    for folder in "$@"; do
        "$PY" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" \
            "$WHEELS/$folder"/*.whl
    done
    PYTHONPATH="$site:$PYTHONPATH"
}

step() { # step NAME SECONDS COMMAND...: run one on its own Triton cache, note status and seconds
    local name=$1 limit=$2 start=$SECONDS status
    shift 2
    echo "== $name"
    mkdir -p "$WORK/$name"
    TRITON_CACHE_DIR="$WORK/$name/triton" timeout "$limit" "$@" 2>&1 | tail -n "${TAIL:-40}"
    status=${PIPESTATUS[0]}
    TABLE+=("$(printf '%-18s status %3s  %4s s' "$name" "$status" $((SECONDS - start)))")
}

sweep() { # sweep NAME SECONDS ARGUMENTS...
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$PY" -m jitwatch sweep --device "$DEVICE" ${KEYS_ONLY:+--keys-only} \
        --run-dir "$WORK/$name/run" --json "$OUT/$name.json" "$@"
    tail -n 3 "$WORK/$name/run/target.log"
}

freetoken() { # freetoken VERSION
    (
        unpack "$WORK/site-$1" "ft-$1" ftdeps
        eval "$("$PY" -m examples.freetoken.prepare "$WORK/kernels-$1" 2>"$WORK/prepare.log")"
        sweep "freetoken-$1" 280 --target examples.freetoken.target:Target --package freetoken \
            --lengths "$LENGTHS"
        printf '%s\n' "${TABLE[@]}" >"$WORK/table-$1"
    )
    TABLE+=("$(cat "$WORK/table-$1" 2>/dev/null || echo "freetoken-$1 failed")")
}

run_freetoken() { # run_freetoken VERSION LENGTHS: the whole program under jitwatch run
    (
        unpack "$WORK/site-$1" "ft-$1" ftdeps
        eval "$("$PY" -m examples.freetoken.prepare "$WORK/kernels-$1" 2>"$WORK/prepare.log")"
        step "run-freetoken-$1" 280 "$PY" -m jitwatch run --package freetoken \
            --run-dir "$WORK/run-freetoken-$1" --json "$OUT/run-freetoken-$1.json" \
            -- "$PY" -m examples.freetoken.program "$2"
        printf '%s\n' "${TABLE[@]}" >"$WORK/table-run-$1"
    )
    TABLE+=("$(cat "$WORK/table-run-$1" 2>/dev/null || echo "run-freetoken-$1 failed")")
}

# 64 lengths from 11 to 2,560: short prompts one by one, powers of two with their neighbours (the
# engine's tiles begin at 257 and 2,049), the pull request's rungs 80 and 128, and some in between.
# cuBLAS takes other kernels at 8k and 8k + 1: most of these only a dense sweep meets.
SIXTY_FOUR=$(seq -s, 11 40),$(seq -s, 64 69),80,$(seq -s, 127 131),$(seq -s, 255 260),512,513,700
SIXTY_FOUR=$SIXTY_FOUR,1000,$(seq -s, 1023 1026),1500,2000,$(seq -s, 2047 2050),2304,2560
# Fewer of the like, for a model with all its layers.
THIRTY_SIX=$(seq -s, 11 24),63,64,65,100,128,129,255,256,257,258,300,512,513,1000,1024,1025
THIRTY_SIX=$THIRTY_SIX,1500,2000,2048,2049,2050,2560

engine_sweep() { # engine_sweep NAME SECONDS ARGUMENTS...
    local name=$1 limit=$2 simulated like=()
    shift 2
    simulated=$(ls sweeps/results/"$name"/sim-h200-*.json 2>/dev/null)
    [ -n "$simulated" ] && [ "$DEVICE" = cuda ] && like=(--simulated "$simulated")
    sweep "$name" "$limit" "$@" "${like[@]}"
}

engine_speed() { # the engine and FreeToken 0.1.2 in turn, where its wheels are given
    (
        options=()
        if [ -n "${WHEELS:-}" ]; then
            unpack "$WORK/site-speed" ft-0.1.2 ftdeps
            eval "$("$PY" -m examples.freetoken.prepare "$WORK/kernels-speed" 2>"$WORK/prepare.log")"
            options=(--freetoken)
        fi
        step engine-speed 500 "$PY" benchmarks/engine_speed.py "${options[@]}" \
            ${QUICK:+--rounds 1} --out "$OUT/engine.json"
        printf '%s\n' "${TABLE[@]}" >"$WORK/table-speed"
    )
    TABLE+=("$(cat "$WORK/table-speed" 2>/dev/null || echo "engine-speed failed")")
}

[ -n "${WHEELS:-}" ] && unpack "$WORK/site" base
for name in "$@"; do
    case $name in
    doctor) step doctor 60 "$PY" -m jitwatch doctor ;;
    tests) step tests 300 "$PY" -m pytest -q -m gpu -n "$JOBS" --dist load ;;
    controls)
        step controls 240 "$PY" -m tests.controls.record --device cuda --jobs "$JOBS" \
            --out "$OUT/controls-h200.json"
        ;;
    fla)
        fla=(--target examples.fla.target:Target --package fla)
        if [ -n "${QUICK:-}" ]; then
            fla+=(--lengths "$LENGTHS")
        else
            fla+=(--min 11 --max 2560)
            [ -n "${SIMULATED:-}" ] && fla+=(--simulated "$SIMULATED")
        fi
        sweep fla 280 "${fla[@]}"
        ;;
    counts) step counts 200 "$PY" benchmarks/compare_counts.py ${QUICK:+--quick} --out "$OUT/counts.json" ;;
    overhead)
        step overhead 240 "$PY" benchmarks/hook_overhead.py ${QUICK:+--quick} ${PAIRS:+--pairs "$PAIRS"} \
            --out "$OUT/overhead.json"
        ;;
    engine-tests) step engine-tests 400 "$PY" -m pytest -q -m gpu -n "$JOBS" --dist load tests/engine ;;
    engine-profile) step engine-profile 200 "$PY" benchmarks/engine_speed.py --profile ;;
    engine-speed) engine_speed ;;
    first-request)
        starts=${QUICK:+1}
        step first-request 560 "$PY" benchmarks/first_request.py \
            --starts "${STARTS:-${starts:-5}}" --out "$OUT/first-request.json"
        ;;
    engine-overhead)
        pairs=${QUICK:+3}
        step engine-overhead 240 "$PY" benchmarks/hook_overhead.py ${QUICK:+--quick} \
            --only engine_decode --pairs "${PAIRS:-${pairs:-33}}" --out "$OUT/engine-overhead.json"
        ;;
    engine-greedy) engine_sweep engine-greedy 280 --min 11 --max 2560 ;;
    engine-sampled)
        engine_sweep engine-sampled 280 --min 11 --max 2560 --param temperature=0.8 \
            --param top_k=20 --param top_p=0.95 --param min_p=0.01
        ;;
    engine-proof) sweep engine-proof 560 --prove 262144 ;;
    engine-40-layers) engine_sweep engine-40-layers 280 --layers 40 --lengths "$THIRTY_SIX" ;;
    story-*)
        fault=${name#story-}
        engine_sweep "$name" 200 --target "examples.story.faults:${fault//-/_}" \
            --lengths "$SIXTY_FOUR"
        ;;
    freetoken-*) freetoken "${name#freetoken-}" ;;
    run-freetoken-*) run_freetoken "${name#run-freetoken-}" "${RUN_LENGTHS:-11-2560}" ;;
    run-tests) step run-tests 200 "$PY" -m pytest -q -s -m gpu tests/test_run_gpu.py ;;
    *)
        echo "gpu_session: unknown step $name" >&2
        exit 2
        ;;
    esac
done
printf '%s\n' "${TABLE[@]}"
rm -rf "$WORK"
