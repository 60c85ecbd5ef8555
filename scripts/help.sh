# What every script sources before it does anything: --help as its first argument prints the comment
# at its beginning, and ends it.

# A script that changes the folder still finds an interpreter that was named relative to it.
case "${PYTHON:-}" in /*) ;; */*) PYTHON="$PWD/$PYTHON" ;; esac

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
