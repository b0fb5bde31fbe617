// Package node stages and publishes volumes on this node for CSI: Manager
// mounts file systems, or attaches block devices, at an orchestrator's paths.
// An Attacher per protocol, such as node/file, turns locators into block
// devices.
//
// Stage and Publish commit the desired state first, and mount last. So the
// kernel shows completion: at start-up a record with its mount is adopted, one
// without is rolled back. Unpublish and Unstage delete the record last. Inline
// volumes, created by Publish and deleted by Unpublish, need more commits.
//
// The caller serializes a volume's calls; Health, Stats and Volumes can run
// concurrently.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Config configures a Manager. Attachers (by protocol) and Store (the
// database's path) are required; others have defaults or disable a feature.
type Config struct {
	Store string
	// Directories of the driver itself, such as the pool: no volume is staged
	// or published in or over them.
	Private   []string
	Attachers map[string]Attacher
	Inline    InlineVolumes
	Grower    Grower
	Health    volume.Health
	// Finds the locator for a request without one.
	Locate func(ctx context.Context, id volume.ID) (access.Access, error)
	// FSType returns the file system with which a volume was created. Empty: it
	// was created without, or a node creates it.
	FSType func(ctx context.Context, id volume.ID) (string, error)
	Logger *slog.Logger
	// This boot; default: the kernel's boot ID.
	Boot string
}

// InlineVolumes creates and deletes inline volumes.
type InlineVolumes interface {
	Create(ctx context.Context, r volume.CreateRequest) (volume.Volume, error)
	Delete(ctx context.Context, id volume.ID) error
}

// Grower expands a volume in its storage, if reachable.
type Grower interface {
	Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error)
}

// Manager stages and publishes volumes on this node.
type Manager struct {
	config  Config
	records *records
	log     *slog.Logger
	boot    string
	// secrets of staged volumes, by id: a publish can have to stage its volume
	// again, and has none.
	secrets sync.Map

	mu       sync.Mutex
	changing map[volume.ID]int // calls that change the volume's mounts
}

// Open opens a node's store. Call Reconcile next.
func Open(ctx context.Context, c Config) (*Manager, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Boot == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("read the boot ID: %w", err)
		}
		c.Boot = strings.TrimSpace(string(id))
	}
	r, err := openRecords(ctx, c.Store)
	if err != nil {
		return nil, err
	}
	if err := removeScratch(c.Store); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return &Manager{config: c, records: r, log: c.Logger, boot: c.Boot, changing: map[volume.ID]int{}}, nil
}

// Close requires that no call is in flight.
func (m *Manager) Close() error { return m.records.close() }

// IsRecorded reports whether a volume is recorded.
func (m *Manager) IsRecorded(ctx context.Context, id volume.ID) (bool, error) {
	_, staged, err := m.records.stage(ctx, id)
	if err != nil || staged {
		return staged, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	return len(publishes) > 0, err
}

// Volumes lists the recorded volumes, sorted by id.
func (m *Manager) Volumes(ctx context.Context) ([]volume.ID, error) {
	all, err := m.records.all(ctx)
	if err != nil {
		return nil, err
	}
	var ids []volume.ID
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// IsUsed reports whether a volume is recorded as used in this boot, or attached.
func (m *Manager) IsUsed(ctx context.Context) (bool, error) {
	all, err := m.records.all(ctx)
	if err != nil {
		return false, err
	}
	for _, v := range all {
		isOfBoot := func(p publication) bool { return p.Boot == m.boot }
		if v.stage != nil && v.stage.Boot == m.boot || slices.ContainsFunc(v.publishes, isOfBoot) {
			return true, nil
		}
	}
	for _, at := range m.config.Attachers {
		held, err := at.Held(ctx)
		if err != nil || len(held) > 0 {
			return len(held) > 0, err
		}
	}
	return false, nil
}

// callWait is the wait for system calls of a process that has just ended.
const callWait = 2 * time.Second

// change keeps Health from reporting a missing mount, and other processes from
// changing the volume, until done is called. Unavailable: the kernel still
// executes a call of an earlier process for the volume.
func (m *Manager) change(ctx context.Context, id volume.ID) (locked context.Context, done func(), err error) {
	locked, unlock, err := deviceop.Lock(ctx, callWait, m.config.Store+".lock", "volume", string(id))
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changing[id]++
	return locked, func() {
		defer unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.changing[id]--; m.changing[id] == 0 {
			delete(m.changing, id)
		}
	}, nil
}

func (m *Manager) isChanging(id volume.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changing[id] > 0
}

type source struct {
	attacher Attacher
	target   Target
}

func (m *Manager) source(stored map[string]string, on mounted) (source, error) {
	a, err := access.Decode(stored)
	if err != nil {
		return source{}, errs.Errorf(errs.Internal, "decode the stored locator: %w", err)
	}
	at, ok := m.config.Attachers[a.Protocol()]
	if !ok {
		return source{}, errs.Errorf(errs.Unsupported, "this driver cannot attach a volume of type %s (targetType of the volume_context)", a.Protocol())
	}
	t := Target{Locator: a}
	if on.Boot == m.boot {
		t.Device = on.Device
	}
	return source{attacher: at, target: t}, nil
}

// heldDevice finds the attached device of a volume without a record: by its id,
// or, if the attacher does not know that or the volume was deleted, by its mount
// at the path. Such a source has no locator. Unavailable: the mount at the path
// can be of an attacher whose storage is not there.
func (m *Manager) heldDevice(ctx context.Context, id volume.ID, path string) (source, bool, error) {
	here, isMounted, err := mount.At(ctx, path)
	if err != nil {
		return source{}, false, err
	}
	var unknown error
	for _, at := range m.config.Attachers {
		held, err := at.Held(ctx)
		if isMounted && errors.Is(err, errs.Unavailable) {
			unknown = fmt.Errorf("of which volume the mount at %s is: %w", path, err)
		}
		if errors.Is(err, errs.Unavailable) {
			continue // without its storage
		}
		if err != nil {
			return source{}, false, err
		}
		for _, h := range held {
			isKnown := h.Volume == id && h.Locator != nil
			isHere := isMounted && (isMountOf(here, h.Device) || isNode(path, h.Device))
			if isKnown || isHere && (h.Volume == "" || h.Volume == id) {
				return source{attacher: at, target: Target{Locator: h.Locator, Device: h.Device}}, true, nil
			}
		}
	}
	return source{}, false, unknown
}

func (s source) lock(ctx context.Context) (unlock func(), err error) {
	return s.attacher.Lock(ctx, s.target)
}

func (s source) inspect(ctx context.Context) (Info, error) { return s.attacher.Inspect(ctx, s.target) }

func (s source) detach(ctx context.Context) error { return s.attacher.Detach(ctx, s.target) }

// Before a volume is attached, only Backing is known.
func (s source) expectedDevice(ctx context.Context) (Device, error) {
	info, err := s.inspect(ctx)
	if err == nil {
		err = info.Problem
	}
	if err != nil || !info.Device.IsZero() {
		return info.Device, err
	}
	return Device{Backing: info.Backing}, nil
}

// unmount also unmounts devices of deleted volumes of that name. Foreign mounts
// stay. The caller holds Lock.
func (s source) unmount(ctx context.Context, path string) error {
	if s.target.Locator == nil {
		return unmountAll(ctx, path, s.target.Device)
	}
	for {
		info, err := s.inspect(ctx)
		if err != nil {
			return err
		}
		d := info.Device
		if d.IsZero() { // the attacher does not have it, but a mount can exist
			d = s.target.Device
		}
		if _, there, err := mountAt(ctx, path, d); err != nil || !there {
			return ignoreForeign(err)
		}
		if err := unmountAll(ctx, path, d); err != nil {
			return err
		}
	}
}

// rollbackTimeout: a failed call's own context can have ended.
const rollbackTimeout = 30 * time.Second

func rollbackContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
}
