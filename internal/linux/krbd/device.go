package krbd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Device is a mapped image. The names are those at the time of the map, even if
// the image was renamed or deleted since.
type Device struct {
	ID           int
	Path         string
	Major, Minor uint32
	Size         int64
	ReadOnly     bool // the device refuses writes
	MappedRO     bool // mapped read-only: it cannot become writable
	// InFlight are requests that the cluster has not answered, Completed those
	// that it has.
	InFlight, Completed uint64

	Cluster          string // its fsid
	PoolID           int64
	Pool, Namespace  string
	Image, ImageID   string
	Snapshot         string   // empty: the image itself
	Client, Instance string   // of the cluster's client: "client4123", "192.0.2.1:0/123"
	Monitors         []string // as the map gave them
	Key              string   // the name of its key; empty if it was mapped without
}

// ErrGone is returned for a device that does not exist any more.
var ErrGone = blockdev.ErrGone

// List lists the mapped images. It reads sysfs alone, which never blocks.
func (k *Kernel) List() ([]Device, error) {
	dir, err := sysfs.Open(k.bus("devices"))
	if sysfs.IsAbsent(err) {
		return nil, nil // no module, no devices
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		d, err := k.read(dir, id)
		if sysfs.IsAbsent(err) {
			continue // being added or removed
		}
		if err != nil {
			return nil, fmt.Errorf("read RBD device %d: %w", id, err)
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Device) int { return a.ID - b.ID })
	return all, nil
}

func (k *Kernel) read(bus sysfs.Dir, id int) (Device, error) {
	name := strconv.Itoa(id)
	dir, err := bus.Open(name)
	if err != nil {
		return Device{}, err
	}
	defer dir.Close()
	d := Device{ID: id, Path: filepath.Join(k.Dev, "rbd"+name)}
	config := ""
	for _, a := range []struct {
		name string
		to   *string
	}{
		{"cluster_fsid", &d.Cluster}, {"pool", &d.Pool}, {"pool_ns", &d.Namespace}, {"name", &d.Image}, {"image_id", &d.ImageID},
		{"current_snap", &d.Snapshot}, {"client_id", &d.Client}, {"client_addr", &d.Instance}, {"config_info", &config},
	} {
		if *a.to, err = dir.Text(a.name); err != nil {
			return Device{}, err
		}
	}
	if d.Snapshot == noSnapshot {
		d.Snapshot = ""
	}
	d.parseConfig(config)
	numbers := map[string]int64{"pool_id": 0, "major": 0, "minor": 0}
	for name := range numbers {
		if numbers[name], err = number(dir, name); err != nil {
			return Device{}, err
		}
	}
	d.PoolID, d.Major, d.Minor = numbers["pool_id"], uint32(numbers["major"]), uint32(numbers["minor"])
	return d, k.readBlock(&d)
}

func (k *Kernel) readBlock(d *Device) error {
	dir, err := sysfs.Open(filepath.Join(k.Sys, "block", "rbd"+strconv.Itoa(d.ID)))
	if err != nil {
		return err
	}
	defer dir.Close()
	sectors, err := number(dir, "size")
	if err != nil {
		return err
	}
	ro, err := number(dir, "ro")
	const sector = 512
	if err != nil {
		return err
	}
	d.Size, d.ReadOnly = sectors*sector, ro != 0
	return d.readRequests(dir)
}

// readRequests reads Documentation/ABI/stable/sysfs-block of the kernel: the
// requests of reads and writes, in flight and completed.
func (d *Device) readRequests(dir sysfs.Dir) error {
	for _, file := range []struct {
		name   string
		fields []int
		to     *uint64
	}{
		{"inflight", []int{0, 1}, &d.InFlight},
		{"stat", []int{0, 4, 11, 15}, &d.Completed}, // reads, writes, discards, flushes
	} {
		text, err := dir.Text(file.name)
		if err != nil {
			return err
		}
		words := strings.Fields(text)
		for _, i := range file.fields {
			if i >= len(words) {
				continue // of a newer kernel
			}
			n, err := strconv.ParseUint(words[i], 10, 64)
			if err != nil {
				return fmt.Errorf("%s/%s is not a list of numbers: %s", dir.Path(), file.name, errs.Quote(text))
			}
			*file.to += n
		}
	}
	return nil
}

func number(dir sysfs.Dir, name string) (int64, error) {
	text, err := dir.Text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s of %s is not a number: %s", name, dir.Path(), errs.Quote(text))
	}
	return n, nil
}

// parseConfig takes from the line of the map what sysfs has nowhere else.
func (d *Device) parseConfig(line string) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return
	}
	d.Monitors = strings.Split(words[0], ",")
	for option := range strings.SplitSeq(words[1], ",") {
		switch key, found := strings.CutPrefix(option, libceph.OptionKey); {
		case found:
			d.Key = key
		case option == optionReadOnly, option == "read_only":
			d.MappedRO = true
		}
	}
	d.MappedRO = d.MappedRO || d.Snapshot != ""
}

// Open opens a device for reading. ErrGone: it does not exist.
func (k *Kernel) Open(d Device) (*os.File, error) { return blockdev.Open(d.Path, d.Major, d.Minor) }
