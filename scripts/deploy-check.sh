#!/usr/bin/env bash
# Checks the files of the deployment as far as that goes without a container
# runtime: Prometheus' rules and their tests (promtool), the compose file
# (docker-compose or docker compose), the gateway's own configuration, and the
# image's build step. What a machine has no tool for is skipped with a word.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v promtool >/dev/null; then
  promtool check rules deploy/prometheus/rules.yml
  promtool test rules deploy/prometheus/rules_test.yml
  promtool check config --syntax-only deploy/prometheus/prometheus.yml
else
  echo "SKIP Prometheus' rules: no promtool (Debian: prometheus)"
fi

export SWITCHYARD_ADMIN_TOKEN=not-a-secret
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  compose=()
  echo "SKIP docker-compose.gpu.yml: neither docker compose nor docker-compose"
fi
if [ ${#compose[@]} -gt 0 ]; then
  "${compose[@]}" -f docker-compose.gpu.yml --profile monitoring config --quiet
  if env -u SWITCHYARD_ADMIN_TOKEN "${compose[@]}" -f docker-compose.gpu.yml config --quiet 2>/dev/null; then
    echo "docker-compose.gpu.yml: starts without an admin token" >&2
    exit 1
  fi
  echo "docker-compose.gpu.yml: well"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# The build step as the Dockerfile has it, in a directory of what it copies.
step=$(sed -n '/^RUN CGO_ENABLED=1/,/^$/p' Dockerfile | sed '1s/^RUN //; s/ \\$//' | tr '\n' ' ')
git archive HEAD | tar -x -C "$out"
(cd "$out" && COMMIT=$(git -C "$OLDPWD" rev-parse --short HEAD) bash -c "${step//\/out\//$out/}")
"$out/switchyard" version
"$out/switchyard" check deploy/switchyard.gpu.yaml
if ldd "$out/switchyard" | grep -i nvidia; then
  echo "the program is linked with NVIDIA's library" >&2
  exit 1
fi
ls -l "$out/switchyard" | awk '{printf "image: program of %.1f MiB\n", $5 / 1048576}'
