// Package disk is a disk for test guests that loses power like a real one.
// Killing QEMU loses only the guest's page cache: writes to an ordinary virtual
// disk stay in the host's page cache, flushed or not, so a missing flush goes
// unnoticed. This disk has a volatile write cache and serves QEMU over a
// network block device (see package nbd):
//
//   - a write is acknowledged once it is in memory;
//   - FLUSH makes durable every write that was complete when the FLUSH
//     arrived, which includes all acknowledged ones; a write with FUA is
//     durable before its answer;
//   - on power loss a random part of the rest survives, in any order, torn
//     between physical blocks. Each block holds its durable content or any
//     later version, because a drive can write out its cache at any time;
//   - the cache is bounded: if it is full, the oldest blocks are written out.
//
// These are exactly the guarantees of the kernel's Documentation/block/
// writeback_cache_control.rst and of "Ordering of messages and writes" in the
// NBD protocol. A Disk survives many power losses: LosePower, kill QEMU, PowerOn,
// start QEMU with the same Args.
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

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// sector is the logical block size of the guest's requests in bytes.
const sector = 512

// Spec describes a disk.
type Spec struct {
	// Path is the backing file. It is created sparse if missing; an existing
	// file must have the right size. Only one Disk can use it at a time.
	Path string
	Size int64 // bytes, a multiple of Block
	// Block is the physical block size, the unit that is never torn: 4096
	// (default, as current drives) or 512.
	Block int
	// Cache limits the write cache in bytes; 0 is 64 MiB.
	Cache int64
	// Survival is what outlives a power loss; Survive changes it.
	Survival Survival
	// Seed makes power losses reproducible: the same requests and the same
	// number of earlier power losses give the same result. Zero is a valid
	// seed.
	Seed uint64
	Log  *slog.Logger // nil: no logs
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
		return fmt.Errorf("physical block size %d is not 512 or 4096", s.Block)
	case s.Size <= 0 || s.Size%int64(s.Block) != 0:
		return fmt.Errorf("size %d is not a positive multiple of the physical block size %d", s.Size, s.Block)
	case s.Cache < 0:
		return fmt.Errorf("cache size %d is negative", s.Cache)
	}
	return nil
}

// Disk is a disk that is powered on or off. Its methods are safe for concurrent
// use.
type Disk struct {
	spec   Spec
	medium *medium
	dir    string // of the socket

	power sync.Mutex // held by PowerOn and Close
	mu    sync.Mutex // guards the fields below; acquired after power

	cache        *cache
	session      *session // the current or last one
	survival     Survival
	trigger      *armedTrigger
	faults       []*Fault
	stalled      Fault
	released     chan struct{} // closed when the stall ends
	waiting      int           // requests that wait for it
	stats        Stats
	powerLossErr error // of the session's power loss
	closed       bool
}

// Open creates or opens a disk and powers it on; Close closes it.
func Open(spec Spec) (*Disk, error) {
	if err := spec.complete(); err != nil {
		return nil, fmt.Errorf("disk %s: %w", spec.Path, err)
	}
	m, err := openMedium(spec.Path, spec.Size)
	if err != nil {
		return nil, err
	}
	// A separate directory, because the path of the backing file can be too
	// long for a socket.
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

// Socket is the path of the Unix socket that serves the disk.
func (d *Disk) Socket() string { return filepath.Join(d.dir, "nbd.sock") }

// Size returns the size in bytes.
func (d *Disk) Size() int64 { return d.spec.Size }

// Do carries out a request of this process, without the socket. Without power
// it fails.
func (d *Disk) Do(r nbd.Request) nbd.Answer {
	d.mu.Lock()
	s, released := d.session, (chan struct{})(nil)
	if d.stalled.matches(r) {
		released = d.released
	}
	if released != nil {
		d.waiting++
	}
	d.mu.Unlock()
	if released != nil {
		<-released
		d.mu.Lock()
		d.waiting--
		d.mu.Unlock()
	}
	r.Mark = s.Mark()
	a := s.Do(r)
	if s.off() {
		return nbd.Answer{Error: nbd.EIO}
	}
	return a
}

// Stall makes matching requests of Do wait until release, as a disk that does
// not answer.
func (d *Disk) Stall(f Fault) (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stalled, d.released = f, make(chan struct{})
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.stalled = Fault{}
		close(d.released)
	})
}

// Stalled returns the number of requests that wait for the end of the stall.
func (d *Disk) Stalled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting
}

// LosePower powers the disk off immediately. Later requests change nothing and are
// never answered; answers to earlier ones can still be in flight. QEMU blocks
// until it is killed; a new one cannot connect. Without power LosePower has no
// effect. It returns the error of the backing file during the power loss, also
// if a trigger caused it.
func (d *Disk) LosePower() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.losePowerLocked("requested")
	return d.powerLossErr
}

func (d *Disk) losePowerLocked(cause string) {
	if d.session.off() || d.closed {
		return
	}
	loss, err := d.cache.losePower(d.survival, rand.New(rand.NewPCG(d.spec.Seed, uint64(d.stats.PowerLosses))))
	if err != nil {
		d.powerLossErr = fmt.Errorf("disk %s: power loss: %w", d.spec.Path, err)
	}
	d.stats.losePower(loss, cause)
	d.trigger = nil
	d.session.stopAnswering()
}

// Gone is closed when the disk loses power. PowerOn replaces the channel.
func (d *Disk) Gone() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session.gone
}

// LosePowerAt makes the disk lose power at a future request; Gone reports that. A new
// trigger replaces one that has not fired.
func (d *Disk) LosePowerAt(o Trigger) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("disk %s: %w", d.spec.Path, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session.off() || d.closed {
		return fmt.Errorf("disk %s: power loss at %v: the disk is powered off", d.spec.Path, o)
	}
	d.trigger = &armedTrigger{Trigger: o}
	return nil
}

// Survive sets what outlives the next power losses.
func (d *Disk) Survive(s Survival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.survival = s
}

// Fail makes matching requests return EIO until the returned function is
// called, also after a power loss.
func (d *Disk) Fail(f Fault) (restore func()) {
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

// PowerOn powers a disk on after a power loss: it closes old connections and
// serves the surviving data at the same socket. A disk that has power keeps its
// clients and its cache.
func (d *Disk) PowerOn() error {
	d.power.Lock()
	defer d.power.Unlock()
	d.mu.Lock()
	old, closed := d.session, d.closed
	d.mu.Unlock()
	if closed {
		return fmt.Errorf("disk %s: power on: the disk is closed", d.spec.Path)
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
	d.session, d.powerLossErr = s, nil
	return nil
}

// Stats returns counters since Open.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.UnflushedBytes, s.Evicted = d.cache.bytes(), d.cache.evicted
	return s
}

// Close closes the disk but keeps the backing file. A powered disk flushes its
// cache first.
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
