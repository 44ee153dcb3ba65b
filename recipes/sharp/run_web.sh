#!/usr/bin/env bash
# SHARP (arXiv 2602.08335, second hand): planner and three workers with search, pages and Python, a Qwen3-8B, 8 GPUs.
# Trained on MuSiQue and tested on GAIA from the hub. TEST_SET: gaia (or gaia-level1 to 3), webwalkerqa, frames;
# TRAIN_SET: musique, webwalkerqa. SOURCE: where to search (an address, a corpus, web:MODULE:FUNCTION); PAGES: where to
# read pages (web, a file). TRAIN_FILE, TEST_FILE: rows as in example_web.jsonl, or of the sets.
# It runs programs that models wrote in the sandbox, and requires its tier "isolated" (docs/sandbox.md).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/web.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.task.options.train="${TRAIN_SET:-musique}" \
    marl.task.options.test="${TEST_SET:-gaia}" \
    marl.workflow.options.source="${SOURCE:-http://127.0.0.1:8000/retrieve}" \
    marl.workflow.options.pages="${PAGES:-web}" \
    "$@"
