package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// rdmaServers lists the storage servers that accept sessions over RDMA, which
// have no sockets and pass no packet filter: targets of the kernel by their
// configuration, others by the RDMA devices that they have open. Without an RDMA
// device no server can. Root is the directory of /proc, /sys and /dev.
func rdmaServers(root string) ([]volume.Listener, error) {
	at := func(path string) string { return filepath.Join(root, path) }
	if devices, err := os.ReadDir(at("sys/class/infiniband")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Errorf(errs.Unavailable, "list RDMA devices: %w", err)
	} else if len(devices) == 0 {
		return nil, nil
	}
	found := []volume.Listener{}
	add := func(addr, port, holder string) {
		ip, _ := netip.ParseAddr(addr)
		number, _ := strconv.ParseUint(port, 10, 16)
		found = append(found, volume.Listener{Address: netip.AddrPortFrom(ip, uint16(number)), Holder: holder})
	}
	nvmet, _ := filepath.Glob(at("sys/kernel/config/nvmet/ports/*"))
	for _, dir := range nvmet {
		if readWord(dir, "addr_trtype") == "rdma" {
			add(readWord(dir, "addr_traddr"), readWord(dir, "addr_trsvcid"), "nvmet over RDMA")
		}
	}
	iser, _ := filepath.Glob(at("sys/kernel/config/target/iscsi/*/tpgt_*/np/*"))
	for _, dir := range iser {
		if readWord(dir, "iser") == "1" {
			address, _ := netip.ParseAddrPort(filepath.Base(dir))
			found = append(found, volume.Listener{Address: address, Holder: "LIO iSCSI over RDMA (iSER)"})
		}
	}
	portlist, _ := os.ReadFile(at("proc/fs/nfsd/portlist"))
	for line := range strings.Lines(string(portlist)) {
		if transport, port, _ := strings.Cut(strings.TrimSpace(line), " "); transport == "rdma" {
			add("::", port, "nfsd over RDMA")
		}
	}
	if strings.Contains(readWord(at("sys/class/ksmbd-control"), "stats"), "running") {
		add("::", "445", "ksmbd, which accepts SMB Direct if the kernel has it")
	}
	return append(found, rdmaProcesses(root)...), nil
}

// hostRoot is the root directory of the first visible process: in a container
// with the machine's PID namespace, that of the machine, which has configfs and
// nfsd's files.
func hostRoot() string {
	const first = "/proc/1/root"
	if _, err := os.Stat(filepath.Join(first, "proc/self")); err != nil {
		return "/"
	}
	return first
}

// rdmaProcesses are storage servers that have an RDMA device open.
func rdmaProcesses(root string) (found []volume.Listener) {
	names, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm"))
	for _, name := range names {
		dir := filepath.Dir(name)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		process := sockfd.Process{PID: pid, Name: readWord(dir, "comm")}
		if !isStorageServer(process) {
			continue
		}
		open, _ := filepath.Glob(filepath.Join(dir, "fd/*"))
		if slices.ContainsFunc(open, func(fd string) bool {
			device, err := os.Readlink(fd)
			return err == nil && strings.HasPrefix(device, "/dev/infiniband/")
		}) {
			found = append(found, volume.Listener{Holder: fmt.Sprintf("%s over RDMA", process)})
		}
	}
	return found
}

// readWord returns a file's text; empty if it cannot be read.
func readWord(dir, name string) string {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(text))
}
