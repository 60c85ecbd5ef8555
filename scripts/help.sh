# Print the comment at the beginning of a script, if its first argument is --help, and end it.
# Every script sources this file before it does anything.

# yaml_text TEXT: print a text as --set of an experiment reads it, whatever characters it has
yaml_text() {
    local quote="'"
    printf "'%s'" "${1//$quote/$quote$quote}"
}

case "${1:-}" in
    -h | --help)
        sed -n '2,${/^#/!q; /^#SBATCH/!{s/^# \{0,1\}//; p}}' "$0"
        exit 0
        ;;
esac
