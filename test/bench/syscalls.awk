# Prints how many system calls each CSI call makes and their total time, from a
# trace of a driver that runs with --log-level debug (calls must not overlap):
#
#   strace -f -T -s 300 -e trace=fsync,fdatasync,ioctl,mount,umount2,move_mount,write -o trace -p "$(pidof cleat)" &
#   cleat volume attach data /srv/data && cleat volume detach data
#   kill %1; wait; awk -f test/bench/syscalls.awk trace
#
# The driver's log lines delimit the calls. Tracing slows down everything except
# disk operations.
/call started/ { call = $0; sub(/.*method[^\/]*\/[^\/]*\//, "", call); sub(/[^A-Za-z].*/, "", call) }
/msg[^a-z]*call[^a-z ]*,/ { call = "" }
call && !/unfinished/ && match($0, /(fsync|fdatasync|ioctl|umount2|mount|move_mount)(\(| resumed)/) {
	name = substr($0, RSTART, RLENGTH); sub(/[( ].*/, "", name)
	if (name == "ioctl" && /ioctl\(/) { request = $0; sub(/.*ioctl\([0-9]+, /, "", request); sub(/[,)].*/, "", request); name = name " " request }
	time = $NF; gsub(/[<>]/, "", time)
	count[call " " name]++; sum[call " " name] += time
}
END { for (k in count) printf "%-50s %4d %9.3f ms\n", k, count[k], 1000 * sum[k] | "sort" }
