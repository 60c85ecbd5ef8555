# Keep what a script that prepares data has not made; sourced by such scripts.

# own OUTPUT DATA: mark a folder as one whose data-bin the script may replace. End if it is that of
# the user's texts, or has a data-bin that no such script has made: `begun` is the mark, `done` that
# of a whole preparation.
own() {
    if [ "$1" -ef "$2" ]; then
        echo "error: $1 is the folder of the texts, which would be replaced; give another one" >&2
        exit 2
    fi
    if [ -e "$1/data-bin" ] && [ ! -e "$1/begun" ] && [ ! -e "$1/done" ]; then
        echo "error: $1/data-bin was not made by this script, which would replace it; give another" \
            "folder, or move it away" >&2
        exit 2
    fi
    touch "$1/begun"
}
