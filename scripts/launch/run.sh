# Run a command so that SIGTERM, SIGUSR1 and a closed terminal (SIGHUP) stop it with a checkpoint;
# sourced by the launchers. Under nohup, SIGHUP stays ignored.
#
# The request is a file, which the training checks after every update: torchrun does not forward
# SIGUSR1, and after SIGTERM it kills its processes within 30 seconds, even while they save.

# Exit status EX_TEMPFAIL of sysexits.h: stopped and saved; the same command continues.
STOPPED=75

# run WORD...: run the command; returns its status, or STOPPED.
run() {
    local child status=0 folder result
    folder="$(mktemp -d)"
    trap 'touch "$folder/asked"' TERM USR1 HUP
    set -m # a separate process group, to which Ctrl-C is forwarded
    (
        trap '' USR1 # SLURM can send it to all processes, and it would kill torchrun
        export FAIRSEQ_RECUR_STOP="$folder"
        export PYTHONSAFEPATH=1 # the current folder may be a clone of fairseq
        exec "$@"
    ) &
    child=$!
    set +m
    trap 'kill -INT -- "-$child" 2>/dev/null || true' INT
    while kill -0 "$child" 2>/dev/null; do
        sleep 1 &
        wait $! || true # a signal interrupts it
    done
    wait "$child" || status=$?
    trap - TERM USR1 HUP INT
    result="$status"
    # Killed while it was stopping: the next start continues from an earlier checkpoint.
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
