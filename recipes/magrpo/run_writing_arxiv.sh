#!/usr/bin/env bash
# The arXiv task: two paragraphs of an introduction, from an abstract of OpenMLRL/arXiv_abstract.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  marl.task.options.train=arxiv \
  marl.task.options.test=arxiv \
  marl.task.options.bands=arxiv \
  marl.workflow.options.kind=arxiv \
  "$@"
