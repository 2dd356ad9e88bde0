# Runs a command as two processes of torchrun's, each on a host of its own: two network namespaces joined by a wire.
#   unshare -rn sh two_hosts.sh PYTHON PORT COMMAND...
set -e
python=$1 port=$2
shift 2
ip link set lo up
ip link add left type veth peer name right
unshare -n sh -c 'while ! ip link set right up 2> /dev/null; do sleep 0.05; done; exec "$@"' sh sh -c '
    ip link set lo up
    ip addr add 10.77.0.2/24 dev right
    python=$1 port=$2
    shift 2
    exec "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank 1 \
        --master-addr 10.77.0.1 --master-port "$port" --local-addr 10.77.0.2 "$@"
' sh "$python" "$port" "$@" > /dev/null &
other=$!
# Until it is gone from here: a move to a process that has yet to leave this namespace succeeds, and moves nothing.
while ip link show right > /dev/null 2>&1; do ip link set right netns "$other" 2> /dev/null || :; sleep 0.05; done
ip addr add 10.77.0.1/24 dev left
ip link set left up
code=0
"$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank 0 \
    --master-addr 10.77.0.1 --master-port "$port" --local-addr 10.77.0.1 "$@" || code=$?
wait "$other" || code=$?
exit "$code"
