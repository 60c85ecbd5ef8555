# Print the comment at the beginning of a script, if its first argument is --help, and end it.
# Every script sources this file before it does anything.
case "${1:-}" in
    -h | --help)
        sed -n '2,${/^#/!q; /^#SBATCH/!{s/^# \{0,1\}//; p}}' "$0"
        exit 0
        ;;
esac
