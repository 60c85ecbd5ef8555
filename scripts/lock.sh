# Let one script at a time work in a folder; sourced by those that prepare something there.

# lock FOLDER: make the folder, and wait until no other script works in it. The lock ends with the
# shell that calls this. Without the command flock (macOS has none) there is no lock.
lock() {
    mkdir -p "$1"
    if ! command -v flock > /dev/null; then return; fi
    exec 9< "$1"
    if ! flock -n 9; then
        echo "Waiting for another script that works in $1"
        flock 9
    fi
}
