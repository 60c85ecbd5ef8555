# Running the command such that SIGTERM and SIGUSR1 end it with a checkpoint; sourced.
#
# The training is asked by a file, at which it looks after every update: torchrun does not pass
# SIGUSR1 on, and answers SIGTERM by killing its processes after 30 seconds, however long they save.

# Exit status of sysexits.h's EX_TEMPFAIL: stopped and saved, the same command goes on.
STOPPED=75

# run WORD...: run the command; returns its status, or STOPPED.
run() {
    local child status=0 folder result
    folder="$(mktemp -d)"
    trap 'touch "$folder/asked"' TERM USR1
    set -m # with a process group of its own, to which Ctrl-C is passed on
    (
        trap '' USR1 # SLURM can send it to all processes, and torchrun would die of it
        export FAIRSEQ_RECUR_STOP="$folder"
        exec "$@"
    ) &
    child=$!
    set +m
    trap 'kill -INT -- "-$child" 2>/dev/null || true' INT
    while kill -0 "$child" 2>/dev/null; do
        sleep 1 &
        wait $! || true # which a signal ends
    done
    wait "$child" || status=$?
    trap - TERM USR1 INT
    result="$status"
    # Cut off while it was stopping: there is an earlier checkpoint to go on from.
    if [ -e "$folder/asked" ] && [ "$status" -ne 0 ]; then result="$STOPPED"; fi
    if [ -e "$folder/stopped" ]; then result="$STOPPED"; fi
    rm -rf "$folder"
    return "$result"
}

# start ARGUMENT...: check the settings, then print or run the command.
start() {
    read_settings "$@"
    if [ "$PRINT" = 1 ]; then
        printf '%q ' "${command[@]}"
        printf '\n'
        return
    fi
    run "${command[@]}"
}
