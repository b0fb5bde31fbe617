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

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// rdmaServers lists the storage servers that accept sessions over RDMA, which
// have no sockets and pass no packet filter: targets of the kernel by their
// configuration, others by the RDMA devices that they have open. Without an RDMA
// device no server can. Root is the directory of /proc, /sys and /dev.
func rdmaServers(root string) ([]volume.Listener, error) {
	if devices, err := os.ReadDir(filepath.Join(root, "sys/class/infiniband")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Errorf(errs.Unavailable, "list RDMA devices: %w", err)
	} else if len(devices) == 0 {
		return nil, nil
	}
	found := []volume.Listener{}
	f := &files{root: root}
	add := func(addr, port, holder string) {
		ip, _ := netip.ParseAddr(addr)
		number, _ := strconv.ParseUint(port, 10, 16)
		found = append(found, volume.Listener{Address: netip.AddrPortFrom(ip, uint16(number)), Holder: holder})
	}
	for _, dir := range f.entries("sys/kernel/config/nvmet/ports") {
		if f.text(dir, "addr_trtype") == "rdma" {
			add(f.text(dir, "addr_traddr"), f.text(dir, "addr_trsvcid"), "nvmet over RDMA")
		}
	}
	for _, target := range f.entries("sys/kernel/config/target/iscsi") {
		for _, group := range f.entries(target) {
			for _, portal := range f.entries(filepath.Join(group, "np")) {
				if f.text(portal, "iser") == "1" {
					address, _ := netip.ParseAddrPort(filepath.Base(portal))
					found = append(found, volume.Listener{Address: address, Holder: "LIO iSCSI over RDMA (iSER)"})
				}
			}
		}
	}
	for line := range strings.Lines(f.text("proc/fs/nfsd", "portlist")) {
		if transport, port, _ := strings.Cut(strings.TrimSpace(line), " "); transport == "rdma" {
			add("::", port, "nfsd over RDMA")
		}
	}
	if strings.Contains(f.text("sys/class/ksmbd-control", "stats"), "running") {
		add("::", "445", "ksmbd, which accepts SMB Direct if the kernel has it")
	}
	found = append(found, f.rdmaProcesses()...)
	if f.err != nil {
		return nil, errs.Errorf(errs.Unavailable, "find storage servers over RDMA: %w", f.err)
	}
	return found, nil
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
func (f *files) rdmaProcesses() (found []volume.Listener) {
	for _, dir := range f.entries("proc") {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		process := sockfd.Process{PID: pid, Name: f.text(dir, "comm")}
		if !isStorageServer(process) {
			continue
		}
		if slices.ContainsFunc(f.entries(filepath.Join(dir, "fd")), func(fd string) bool {
			device, err := os.Readlink(filepath.Join(f.root, fd))
			f.note(err)
			return strings.HasPrefix(device, "/dev/infiniband/")
		}) {
			found = append(found, volume.Listener{Holder: fmt.Sprintf("%s over RDMA", process)})
		}
	}
	return found
}

// files reads files below root. What does not exist is empty; err has the first other
// error.
type files struct {
	root string
	err  error
}

// entries returns the paths of a directory's entries below root. A file has none.
func (f *files) entries(dir string) (paths []string) {
	all, err := os.ReadDir(filepath.Join(f.root, dir))
	f.note(err)
	for _, one := range all {
		paths = append(paths, filepath.Join(dir, one.Name()))
	}
	return paths
}

func (f *files) text(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(f.root, dir, name))
	f.note(err)
	return strings.TrimSpace(string(text))
}

func (f *files) note(err error) {
	for _, absent := range []error{fs.ErrNotExist, unix.ENOTDIR, unix.ESRCH} {
		if errors.Is(err, absent) {
			return
		}
	}
	if f.err == nil {
		f.err = err
	}
}
