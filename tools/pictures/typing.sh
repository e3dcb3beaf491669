# Shows commands as a person types them; record.py puts it before them.
prompt() { printf '\033[32m$\033[0m '; }
type_in() {
    local i
    for ((i = 0; i < ${#1}; i++)); do printf '%s' "${1:i:1}"; sleep 0.03; done
    sleep 0.3; printf '\n'
}
