package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/durable"
)

// topologyFile is the file in the state directory with the last topology.
const topologyFile = "topology.json"

// ServeTopology compares the topology with the last start. While the pool
// contains volumes, it refuses (Precondition) one that lacks a previous
// segment: PersistentVolumes have it in their node affinity, and
// external-provisioner silently ignores deletions of those that do not match.
func (e *Engine) ServeTopology(ctx context.Context, stateDir string, now map[string]string) error {
	path := filepath.Join(stateDir, topologyFile)
	var before map[string]string
	switch text, err := os.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &before); err != nil {
			return fmt.Errorf("%s cannot be read: %w; remove it if the topology did not change", path, err)
		}
	}
	e.logger.InfoContext(ctx, "topology of this node", "segments", now)
	if before != nil && maps.Equal(before, now) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if value, kept := now[key]; kept && value == before[key] {
			continue
		}
		volumes, err := e.List(ctx, "", 1)
		if err != nil {
			return err
		}
		if len(volumes) > 0 {
			return errs.Errorf(errs.Precondition, "topology segment %q is missing from %v, but PersistentVolumes of volumes in the pool require it and would never be deleted. Configure it again (--topology, --node-id), or delete or move the volumes first (or remove %s to start without it)",
				key+"="+before[key], now, path)
		}
		break
	}
	if before != nil {
		e.logger.WarnContext(ctx, "topology changed", "before", before, "segments", now)
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := durable.Write(path, append(text, '\n')); err != nil {
		return fmt.Errorf("record the topology: %w", err)
	}
	return nil
}
