#!/usr/bin/env bash
# The arXiv task: two paragraphs of an introduction, from an abstract.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  marl.task.options.bands=arxiv \
  marl.workflow.options.kind=arxiv \
  marl.task.train_file="${TRAIN_FILE:-data/arxiv/train.jsonl}" \
  marl.task.test_file="${TEST_FILE:-data/arxiv/test.jsonl}" \
  "$@"
