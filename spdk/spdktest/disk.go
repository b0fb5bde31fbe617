package spdktest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
)

// Disk accesses the data of an lvol, as a host would. It follows the lvol over
// renames, resizes and restarts of the process, and fails while the process
// does not show the lvol.
type Disk struct {
	process *Process
	uuid    string
	closed  bool
}

// OpenLvol opens an lvol by name, alias or uuid.
func (p *Process) OpenLvol(name string) (*Disk, error) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	l := p.lvol(name)
	if l == nil {
		return nil, fmt.Errorf("spdktest: open lvol %s: %w", name, syscall.ENODEV)
	}
	return &Disk{process: p, uuid: l.uuid}, nil
}

// use calls what with the lvol, locked.
func (d *Disk) use(doing string, what func(*lvol) error) error {
	d.process.network.mu.Lock()
	defer d.process.network.mu.Unlock()
	l, err := d.process.lvol(d.uuid), error(nil)
	switch {
	case d.closed:
		err = os.ErrClosed
	case l == nil:
		err = syscall.ENODEV
	default:
		err = what(l)
	}
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("spdktest: %s lvol %s: %w", doing, d.uuid, err)
}

func (l *lvol) size() int64 { return int64(l.clusters * l.store.cluster) }

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(b []byte, offset int64) (int, error) {
	n := 0
	err := d.use("read", func(l *lvol) error {
		if offset < 0 {
			return syscall.EINVAL
		}
		n = int(max(0, min(int64(len(b)), l.size()-offset)))
		l.read(b[:n], uint64(offset))
		if n < len(b) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

// WriteAt implements io.WriterAt. It fails on snapshots (EROFS), beyond the end
// (EINVAL), and when the store is full (ENOSPC).
func (d *Disk) WriteAt(b []byte, offset int64) (int, error) {
	n := 0
	err := d.use("write", func(l *lvol) error {
		switch {
		case l.readOnly:
			return syscall.EROFS
		case offset < 0 || offset+int64(len(b)) > l.size():
			return syscall.EINVAL
		}
		if n = l.write(b, uint64(offset)); n < len(b) {
			return syscall.ENOSPC
		}
		return nil
	})
	return n, err
}

// Size returns the current size in bytes.
func (d *Disk) Size() (int64, error) {
	var size int64
	err := d.use("stat", func(l *lvol) error {
		size = l.size()
		return nil
	})
	return size, err
}

// Sync fails like other operations; writes are in effect when they return.
func (d *Disk) Sync() error {
	return d.use("sync", func(*lvol) error { return nil })
}

// Close closes the disk; the lvol stays.
func (d *Disk) Close() error {
	d.process.network.mu.Lock()
	defer d.process.network.mu.Unlock()
	d.closed = true
	return nil
}

// Write allocates clusters of a thin lvol, as writes would. It returns false if
// the lvol does not exist or space is short.
func (p *Process) Write(name string, clusters uint64) bool {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	l := p.lvol(name)
	if l == nil || l.allocated()+clusters > l.clusters {
		return false
	}
	for i := uint64(0); clusters > 0; i++ {
		if l.has(i) {
			continue
		}
		if !l.own(i) {
			return false
		}
		clusters--
	}
	return true
}

// Fill makes free clusters of a store unavailable, except left;
// math.MaxUint64 makes all available again. It returns false if the store does
// not exist.
func (p *Process) Fill(store string, left uint64) bool {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	s := p.store(store, store)
	if s == nil {
		return false
	}
	s.taken = 0
	if left < math.MaxUint64 {
		s.taken = s.free() - min(left, s.free())
	}
	return true
}
