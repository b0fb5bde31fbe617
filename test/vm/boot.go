package vm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/wire"
)

// Boot starts a guest and waits until its agent serves. The guest ends with the
// test at the latest. A failed test logs the end of the console.
func Boot(t testing.TB, s Spec) *Guest {
	t.Helper()
	g, err := Launch(t.Context(), s, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	artifacts := t.ArtifactDir() // ArtifactDir must not be called in a cleanup
	t.Cleanup(func() {
		if t.Failed() {
			g.reportFailure(t, artifacts)
			g.keepForDebugging(os.Stderr)
		}
		if err := g.Close(); err != nil {
			t.Errorf("guest %s: %v", g.spec.Name, err)
		}
	})
	return g
}

// Launch is Boot without a test: the caller closes the guest. ctx bounds the
// boot; log reports slow steps.
func Launch(ctx context.Context, s Spec, log func(format string, args ...any)) (_ *Guest, err error) {
	s = s.withDefaults()
	defer func() {
		if err != nil {
			err = fmt.Errorf("boot guest %s: %w", s.Name, err)
		}
	}()
	g, err := prepareGuest(s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	emulator, err := g.build(ctx, log)
	if err != nil {
		return nil, err
	}
	queued := time.Now()
	if err := g.acquireSlot(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	if err := g.start(emulator); err != nil {
		return nil, err
	}
	if err := g.waitReady(ctx); err != nil {
		return nil, err
	}
	if err := os.Remove(g.files.initrd); err != nil { // QEMU has loaded it; a killed test leaves less over
		return nil, err
	}
	log("guest %s (kernel %s) serves after %.1f s, after waiting %.1f s for a slot", s.Name, g.release, time.Since(started).Seconds(), started.Sub(queued).Seconds())
	return g, nil
}

// prepareGuest creates the guest's scratch directory and listener.
func prepareGuest(s Spec) (*Guest, error) {
	dir, err := os.MkdirTemp("", "vm-") // short, because a socket path is limited
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Guest{
		spec: s, dir: dir, listener: listener, token: rand.Text(),
		idle: make(chan *link, idleLinks), ready: make(chan error, 1), gone: make(chan struct{}), closed: make(chan struct{}),
	}, nil
}

// Prepare downloads and builds what a guest is made of, so that Boot needs no
// network.
func Prepare(ctx context.Context, s Spec, log func(format string, args ...any)) error {
	_, _, _, err := s.withDefaults().prepare(ctx, log)
	return err
}

func (s Spec) prepare(ctx context.Context, log func(string, ...any)) (*image.Store, image.QEMU, image.Files, error) {
	dir, err := image.DefaultDir()
	if err != nil {
		return nil, image.QEMU{}, image.Files{}, err
	}
	store, err := image.Open(dir, log)
	if err != nil {
		return nil, image.QEMU{}, image.Files{}, err
	}
	emulator, err := store.Emulator(ctx, s.Emulator)
	if err != nil {
		return nil, image.QEMU{}, image.Files{}, err
	}
	made, err := store.Guest(ctx, s.recipe())
	return store, emulator, made, err
}

// build builds the initramfs and returns the emulator.
func (g *Guest) build(ctx context.Context, log func(string, ...any)) (image.QEMU, error) {
	store, emulator, made, err := g.spec.prepare(ctx, log)
	if err != nil {
		return image.QEMU{}, err
	}
	g.release = made.Release
	g.files = files{
		kernel: made.Kernel, initrd: filepath.Join(g.dir, "initrd"),
		monitor: filepath.Join(g.dir, "monitor"), serial: filepath.Join(g.dir, "serial"), console: filepath.Join(g.dir, "console"),
	}
	port := g.listener.Addr().(*net.TCPAddr).Port
	config := wire.Config{
		Host: net.JoinHostPort(HostAddress, strconv.Itoa(port)), Token: g.token,
		Modules: made.Modules, MAC: mac(hostSide), Address: guestAddress,
	}
	return emulator, buildAgent(ctx, store, func(agent string) error {
		own, err := overlay(g.spec, agent, config)
		if err != nil {
			return err
		}
		return writeInitrd(g.files.initrd, made.Initrd, own)
	})
}

// acquireSlot waits for a slot.
func (g *Guest) acquireSlot(ctx context.Context) (err error) {
	g.slots = g.spec.Slots
	if g.slots == nil {
		dir, err := image.DefaultDir()
		if err != nil {
			return err
		}
		if g.slots, err = reserveSlots(ctx, dir, 1); err != nil {
			return err
		}
	}
	g.slot, err = g.slots.take()
	return err
}

// waitReady waits for the agent's first connection.
func (g *Guest) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.spec.BootTime)
	defer cancel()
	select {
	case err := <-g.ready:
		if err != nil {
			return fmt.Errorf("%w%s", err, g.diagnostics())
		}
		return nil
	case <-g.gone:
		return fmt.Errorf("QEMU exited before the guest was ready: %w%s", g.exitReason(), g.diagnostics())
	case <-ctx.Done():
		return fmt.Errorf("the guest was not ready in time: %w%s", ctx.Err(), g.diagnostics())
	}
}
