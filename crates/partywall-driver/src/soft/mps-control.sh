#!/bin/sh
# Stand-in for NVIDIA's MPS control program, for a simulated GPU.
#
#   nvidia-cuda-mps-control -f    be the daemon, until it is told to quit
#   nvidia-cuda-mps-control -d    start one in the background
#   nvidia-cuda-mps-control       give the commands of standard input, one a line, to the daemon
#
# Everything is files of the pipe directory, which the simulated driver reads and writes too:
#   soft-mps       process id and start time of the daemon: it is there while that process lives
#   server         exists from the first client or start_server on; the daemon is its own server
#   clients/PID    a client, with the start time of its process inside; made by the simulated driver
#   faulted/PID    a client that a fault has ended, as in clients; made by the simulated driver
#   percentage     default of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, which a client can only lower
#   control        a FIFO: a line in it ends the daemon
PATH=${PATH:+$PATH:}/usr/bin:/bin
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
log=${CUDA_MPS_LOG_DIRECTORY:-}

# Start time of a process in clock ticks: the same number with the same id is the same process. Fails where it is gone.
start_of() {
    stat=
    { read -r stat < "/proc/$1/stat"; } 2> /dev/null
    [ -n "$stat" ] || return 1
    # The name, in brackets, may have blanks and brackets of its own.
    set -- ${stat##*) }
    # A process that nobody waited for is gone.
    [ "$1" != Z ] && [ "$1" != X ] && start=${20}
}

# Whether the file $2 holds the start time of process $1.
is_process() {
    held=
    { read -r held < "$2"; } 2> /dev/null
    start_of "$1" && [ "$held" = "$start" ]
}

# Sets `daemon` where one lives.
find_daemon() {
    daemon= started=
    { read -r daemon started < "$pipe/soft-mps"; } 2> /dev/null
    [ -n "$daemon" ] && start_of "$daemon" && [ "$started" = "$start" ]
}

# Sets `clients` to the living ones, and forgets the others.
find_clients() {
    clients=
    for file in "$pipe"/clients/*; do
        pid=${file##*/}
        case $pid in *[!0-9]*) continue ;; esac
        if is_process "$pid" "$file"; then clients="$clients $pid"; else rm -f "$file"; fi
    done
    if [ -n "$clients" ]; then : > "$pipe/server"; fi
}

# Whether a client that a fault has ended still lives; forgets the others.
has_faulted() {
    faulted=1
    for file in "$pipe"/faulted/*; do
        pid=${file##*/}
        case $pid in *[!0-9]*) continue ;; esac
        if is_process "$pid" "$file"; then faulted=0; else rm -f "$file"; fi
    done
    return $faulted
}

note() {
    if [ -n "$log" ] && [ -d "$log" ]; then echo "Control $$: $*" >> "$log/control.log"; fi
}

serve() {
    mkdir -p "$pipe/clients" "$pipe/faulted" || exit 1
    if find_daemon; then
        echo 'An instance of this daemon is already running' >&2
        exit 1
    fi
    rm -f "$pipe/control" "$pipe/server"
    mkfifo "$pipe/control" || exit 1
    echo 100.0 > "$pipe/percentage"
    start_of $$ || exit 1
    # Opened for both, so that the FIFO always has a reader, and reading waits.
    exec 3<> "$pipe/control"
    echo "$$ $start" > "$pipe/soft-mps.new" && mv "$pipe/soft-mps.new" "$pipe/soft-mps" || exit 1
    note Start
    read -r line <&3
    rm -f "$pipe/soft-mps" "$pipe/control" "$pipe/server"
    note Exit
}

known_server() {
    if [ "$1" != "$daemon" ] || [ ! -e "$pipe/server" ]; then
        echo "Server $1 not found"
        return 1
    fi
}

# A number from 0 to 100, with or without decimals.
percentage() {
    case $1 in '' | *[!0-9.]* | *.*.* | .) return 1 ;; esac
    whole=${1%%.*}
    case ${whole:-0} in ????*) return 1 ;; esac
    [ "${whole:-0}" -le 100 ]
}

set_percentage() {
    if ! percentage "$1"; then
        echo "Invalid percentage: $1"
        return 1
    fi
    case $1 in *.*) echo "$1" ;; *) echo "$1.0" ;; esac > "$pipe/percentage.new" && mv "$pipe/percentage.new" "$pipe/percentage"
}

# quit [-t SECONDS]: waits for clients, at most so long. -f does not wait.
quit() {
    tenths=
    case $1 in
        -f) tenths=0 ;;
        -t) case $2 in '' | *[!0-9]* | 0?* | ??????*) echo "Invalid timeout: $2"; return 1 ;; esac
            tenths=$(($2 * 10)) ;;
    esac
    while find_clients; [ -n "$clients" ]; do
        if [ -n "$tenths" ]; then
            [ "$tenths" -gt 0 ] || break
            tenths=$((tenths - 1))
        fi
        sleep 0.1
    done
    echo quit > "$pipe/control"
}

command_line() {
    if ! find_daemon; then
        echo 'Cannot find MPS control daemon process'
        return 1
    fi
    find_clients
    case $1 in
        get_server_list) if [ -e "$pipe/server" ]; then echo "$daemon"; fi ;;
        get_server_status) known_server "$2" && if has_faulted; then echo FAULT; else echo ACTIVE; fi ;;
        get_client_list) known_server "$2" && for pid in $clients; do echo "$pid"; done ;;
        ps) for pid in $clients; do echo "$pid server $daemon"; done ;;
        start_server) : > "$pipe/server" ;;
        get_default_active_thread_percentage) cat "$pipe/percentage" ;;
        get_active_thread_percentage) known_server "$2" && cat "$pipe/percentage" ;;
        set_default_active_thread_percentage) set_percentage "$2" ;;
        set_active_thread_percentage) known_server "$2" && set_percentage "$3" ;;
        quit) quit "$2" "$3" ;;
        '') ;;
        *)
            echo "Unknown command: $1"
            return 1
            ;;
    esac
}

case $1 in
    -v) echo 'CUDA MPS Control binary version: 13000' ;;
    -f) serve ;;
    -d)
        "$0" -f < /dev/null > /dev/null 2>&1 &
        tries=0
        until find_daemon; do
            tries=$((tries + 1))
            if [ $tries -gt 100 ]; then
                echo 'The daemon did not start' >&2
                exit 1
            fi
            sleep 0.05
        done
        ;;
    '')
        status=0
        while read -r name first second rest; do
            command_line "$name" "$first" "$second" || status=1
        done
        exit $status
        ;;
    *)
        echo "Unknown option: $1; -d, -f and -v are known" >&2
        exit 1
        ;;
esac
