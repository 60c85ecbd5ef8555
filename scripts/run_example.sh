# Run the run.py of an example in the environment, which is set up first; an example's run.sh ends
# with: source scripts/run_example.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
HERE="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# The tensors are small: each training gets one core.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"
exec python "$HERE/run.py" "$@"
