package nvme

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Namespace is a namespace's block device.
type Namespace struct {
	Path         string
	Major, Minor uint32
	NQN          string // of the subsystem
	NSID         uint32
	UUID, NGUID  string // lower case; empty: the target sets none
	// WWID identifies the namespace. The kernel makes it of the UUID, NGUID or
	// EUI-64, else of serial number, model and NSID.
	WWID     string
	Size     int64
	ReadOnly bool
	// WriteBack: the target has a volatile cache, or says so, and the kernel
	// sends flushes.
	WriteBack bool
}

// isNamespace accepts the names of disks (nvme0n1), not those of the hidden
// devices of paths (nvme0c0n1) and of partitions. Their numbers are not those of
// controllers.
func isNamespace(name string) bool {
	subsystem, namespace, found := strings.Cut(strings.TrimPrefix(name, "nvme"), "n")
	isNumber := func(s string) bool { _, err := strconv.ParseUint(s, 10, 32); return err == nil }
	return found && strings.HasPrefix(name, "nvme") && isNumber(subsystem) && isNumber(namespace)
}

// Namespaces lists the block devices of a subsystem's namespaces. It reads
// sysfs alone, which never blocks.
func (k *Kernel) Namespaces(nqn string) ([]Namespace, error) {
	block, err := sysfs.Open(filepath.Join(k.Sys, "block"))
	if err != nil {
		return nil, err
	}
	defer block.Close()
	names, err := block.Names()
	if err != nil {
		return nil, err
	}
	var all []Namespace
	for _, name := range names {
		if !isNamespace(name) {
			continue
		}
		n, err := k.readNamespace(block, name)
		if sysfs.IsAbsent(err) {
			continue // being removed
		}
		if err != nil {
			return nil, fmt.Errorf("read NVMe namespace %s: %w", name, err)
		}
		if n.NQN == nqn {
			all = append(all, n)
		}
	}
	return all, nil
}

func (k *Kernel) readNamespace(block sysfs.Dir, name string) (Namespace, error) {
	dir, err := block.Open(name)
	if err != nil {
		return Namespace{}, err
	}
	defer dir.Close()
	n := Namespace{Path: filepath.Join(k.Dev, name)}
	var number, nsid, size, readOnly, cache string
	for _, a := range []struct {
		name string
		to   *string
	}{
		{"device/subsysnqn", &n.NQN}, {"dev", &number}, {"nsid", &nsid}, {"wwid", &n.WWID},
		{"size", &size}, {"ro", &readOnly}, {"queue/write_cache", &cache},
	} {
		if *a.to, err = dir.Text(a.name); err != nil {
			return Namespace{}, err
		}
	}
	var nguid string
	if err := optional(dir, map[string]*string{"uuid": &n.UUID, "nguid": &nguid}); err != nil { // the kernel hides those that the target does not set
		return Namespace{}, err
	}
	n.NGUID = strings.ReplaceAll(nguid, "-", "")
	n.ReadOnly, n.WriteBack = readOnly == "1", cache == "write back"
	if _, err := fmt.Sscanf(number, "%d:%d", &n.Major, &n.Minor); err != nil {
		return Namespace{}, fmt.Errorf("dev is not a device number: %s", errs.Quote(number))
	}
	id, err := strconv.ParseUint(nsid, 10, 32)
	if err != nil {
		return Namespace{}, fmt.Errorf("nsid is not a number: %s", errs.Quote(nsid))
	}
	sectors, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return Namespace{}, fmt.Errorf("size is not a number: %s", errs.Quote(size))
	}
	const sector = 512
	n.NSID, n.Size = uint32(id), sectors*sector
	return n, nil
}

// Open opens a namespace's device for reading. blockdev.ErrGone: it does not
// exist.
func (n Namespace) Open() (*os.File, error) { return blockdev.Open(n.Path, n.Major, n.Minor) }
