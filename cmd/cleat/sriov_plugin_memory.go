package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/plugin"
)

// remember opens the record of what was given out. The plugin can do without:
// what pods have is then known from the kubelet only. So where nobody asked for
// a directory and the default cannot be made, as in the upstream plugin's own
// pod with its read-only root, it says so and goes on; and a record that cannot
// be read makes way for a new one.
func (s *sriovPluginServer) remember(ctx context.Context) (plugin.Memory, error) {
	dir := s.flags.stateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if dir == sriovPluginState && (errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission)) {
			s.logger.Warn("there is no directory for what is given out, so that a restart forgets it: give --state-dir, or mount a directory there from the host", "error", err)
			return nil, nil
		}
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	file := filepath.Join(dir, "plugin.db")
	memory, err := s.openGrants(ctx, file)
	if !errors.Is(err, store.ErrDamaged) {
		return memory, err
	}
	aside := fmt.Sprintf("%s.damaged-%d", file, time.Now().Unix())
	s.logger.Error("the record of what was given out is damaged; a new one is begun, and until the kubelet tells who has what, functions in pods may be taken for gone",
		"error", err, "moved_to", aside)
	if err := os.Rename(file, aside); err != nil {
		return nil, err
	}
	return s.openGrants(ctx, file)
}

func (s *sriovPluginServer) openGrants(ctx context.Context, file string) (plugin.Memory, error) {
	var err error
	if s.store, err = store.Open(ctx, file, store.Options{Role: grants.Role, Version: grants.Version, Preallocate: 1 << 20}); err != nil {
		return nil, err
	}
	memory, err := grants.Open(ctx, s.store)
	if err != nil {
		err = errors.Join(err, s.store.Close())
		s.store = nil
		return nil, err
	}
	return memory, nil
}
