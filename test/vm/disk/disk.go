// Package disk is the disk of a test guest that loses power as a real one
// does. Killing QEMU loses only what the guest's kernel still held: what it
// wrote to a virtual disk stays in the host's page cache, flushed or not, and a
// missing flush is never found. This disk has a volatile write cache of its
// own, behind a network block device that QEMU attaches (see package nbd):
//
//   - a write is answered from memory;
//   - FLUSH makes durable every write that was carried out before the FLUSH
//     came in, so all those that the guest had an answer to, and a write with
//     FUA is durable before its answer;
//   - when the power is cut, of the rest a random part survives, in any order,
//     torn between physical blocks. Of each block there is left what was
//     durable or any of its later versions, as a drive may write out what it
//     holds whenever it likes;
//   - the cache has a bound; beyond it the oldest blocks are written out, as
//     by any drive.
//
// These are the guarantees of the kernel's Documentation/block/
// writeback_cache_control.rst and of "Ordering of messages and writes" in the
// NBD protocol, and no more. A Disk lives through many cuts: Cut, kill QEMU,
// PowerOn, start QEMU with the same Args.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// sector is the unit of the guest's requests, in bytes (logical_block_size).
const sector = 512

// Spec describes a disk.
type Spec struct {
	// Path is the backing file: made, sparse, when it is missing. Of an
	// existing one the size must fit. One Disk uses it at a time.
	Path string
	Size int64 // bytes, a multiple of Block
	// Block is the physical block, the unit that a cut does not tear: 4096,
	// which is the default and what today's drives have, or 512.
	Block int
	// Cache bounds the memory of the write cache in bytes; zero is 64 MiB.
	Cache int64
	// Survival is what outlives a cut; Survive changes it.
	Survival Survival
	// Seed makes what survives repeatable: the same requests and the same
	// number of cuts before give the same. Zero is a seed too.
	Seed uint64
	Log  *slog.Logger // nil: nothing is logged
}

func (s *Spec) complete() error {
	if s.Block == 0 {
		s.Block = 4096
	}
	if s.Cache == 0 {
		s.Cache = 64 << 20
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case s.Block != 512 && s.Block != 4096:
		return fmt.Errorf("a physical block of %d bytes: 512 or 4096 are possible", s.Block)
	case s.Size <= 0 || s.Size%int64(s.Block) != 0:
		return fmt.Errorf("a size of %d bytes: a positive multiple of the physical block, %d, is needed", s.Size, s.Block)
	case s.Cache < 0:
		return fmt.Errorf("a cache of %d bytes: it cannot be negative", s.Cache)
	}
	return nil
}

// Disk is a disk with power, or waiting for it. Its methods may be called from
// several goroutines.
type Disk struct {
	spec   Spec
	medium *medium
	dir    string // of the socket

	power sync.Mutex // held from the begin to the end of PowerOn and Close
	mu    sync.Mutex // guards what follows; PowerOn and Close take it after power

	cache    *cache
	session  *session // the current or last one
	survival Survival
	order    *order
	faults   []*Fault
	stats    Stats
	cutErr   error // of the session's cut
	closed   bool
}

// Open makes or opens a disk and powers it on. Close ends it.
func Open(spec Spec) (*Disk, error) {
	if err := spec.complete(); err != nil {
		return nil, fmt.Errorf("disk %s: %w", spec.Path, err)
	}
	m, err := openMedium(spec.Path, spec.Size)
	if err != nil {
		return nil, err
	}
	// A directory of its own: the backing file's may be too long for a socket.
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		return nil, errors.Join(err, m.file.Close())
	}
	d := &Disk{spec: spec, medium: m, dir: dir, survival: spec.Survival, cache: newCache(m, int64(spec.Block), spec.Cache)}
	if d.session, err = newSession(d); err != nil {
		return nil, errors.Join(fmt.Errorf("disk %s: %w", spec.Path, err), m.file.Close(), os.RemoveAll(dir))
	}
	return d, nil
}

// Socket is the path of the UNIX socket at which the disk is served.
func (d *Disk) Socket() string { return filepath.Join(d.dir, "nbd.sock") }

// Cut takes the power away now. Requests that come later change nothing and
// are never answered; an answer to an earlier one may still be on its way. QEMU
// is left waiting and is to be killed; a new one cannot connect. On a disk that
// has no power Cut changes nothing. The error is that of the backing file when
// the power went, by Cut or by an order.
func (d *Disk) Cut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cutLocked("by call")
	return d.cutErr
}

func (d *Disk) cutLocked(cause string) {
	if d.session.off() || d.closed {
		return
	}
	loss, err := d.cache.cut(d.survival, rand.New(rand.NewPCG(d.spec.Seed, uint64(d.stats.Cuts))))
	if err != nil {
		d.cutErr = fmt.Errorf("disk %s: cut: %w", d.spec.Path, err)
	}
	d.stats.cut(loss, cause)
	d.order = nil
	d.session.fallSilent()
}

// Gone is closed when the power goes, by Cut or by an order. After PowerOn
// there is another channel.
func (d *Disk) Gone() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session.gone
}

// CutAt orders the disk to cut its power by itself; Gone tells when it has. A
// later order replaces one that has not been carried out.
func (d *Disk) CutAt(o Order) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("disk %s: %w", d.spec.Path, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session.off() || d.closed {
		return fmt.Errorf("disk %s: order to cut at %v: there is no power", d.spec.Path, o)
	}
	d.order = &order{Order: o}
	return nil
}

// Survive says what outlives the cuts from now on.
func (d *Disk) Survive(s Survival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.survival = s
}

// Fail makes requests answer EIO from now on, until heal is called. A cut does
// not heal.
func (d *Disk) Fail(f Fault) (heal func()) {
	fault := &f
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, fault)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.faults = slices.DeleteFunc(d.faults, func(other *Fault) bool { return other == fault })
	}
}

// PowerOn gives a disk its power back after a cut: connections from before are
// closed, and it serves at the same socket what has survived. A disk that has
// power keeps its clients and its cache.
func (d *Disk) PowerOn() error {
	d.power.Lock()
	defer d.power.Unlock()
	d.mu.Lock()
	old, closed := d.session, d.closed
	d.mu.Unlock()
	if closed {
		return fmt.Errorf("disk %s: power on: it is closed", d.spec.Path)
	}
	if !old.off() {
		return nil
	}
	err := old.end()
	if err != nil {
		return fmt.Errorf("disk %s: power on: %w", d.spec.Path, err)
	}
	s, err := newSession(d)
	if err != nil {
		return fmt.Errorf("disk %s: power on: %w", d.spec.Path, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session, d.cutErr = s, nil
	return nil
}

// Stats returns what the disk has seen so far.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.UnflushedBytes, s.Aged = d.cache.bytes(), d.cache.aged
	return s
}

// Close ends the disk. One that has power writes its cache out first, as a
// drive does that is told to stop; the backing file stays.
func (d *Disk) Close() error {
	d.power.Lock()
	defer d.power.Unlock()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	s := d.session
	d.mu.Unlock()
	err := s.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(err, d.cache.flushAll(), d.medium.file.Close(), os.RemoveAll(d.dir))
}
