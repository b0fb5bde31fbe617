package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// topologyFile is the file in the state directory with the topology that was served last.
const topologyFile = "topology.json"

// checkTopology logs the topology of this node and what changed since the last start. It
// refuses a topology without a segment of the last one while the pool holds volumes:
// their PersistentVolumes name that segment, and external-provisioner deletes only those
// whose node affinity matches the present topology, and does not report the others.
func checkTopology(ctx context.Context, stateDir string, now map[string]string, holdsVolumes func(context.Context) (bool, error), logger *slog.Logger) error {
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
	logger.InfoContext(ctx, "topology of this node", "segments", now)
	if before != nil && maps.Equal(before, now) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if value, kept := now[key]; kept && value == before[key] {
			continue
		}
		held, err := holdsVolumes(ctx)
		if err != nil {
			return err
		}
		if held {
			return fmt.Errorf("topology segment %q is missing from %v, and the pool holds volumes whose PersistentVolumes name it: they would never be deleted. Serve it again (--topology, --node-id), or delete or move the volumes first (or remove %s to serve without it)",
				key+"="+before[key], now, path)
		}
		break
	}
	if before != nil {
		logger.WarnContext(ctx, "topology changed", "before", before, "segments", now)
	}
	return rememberTopology(path, now)
}

// rememberTopology writes the file atomically, also across a power loss.
func rememberTopology(path string, topology map[string]string) error {
	text, err := json.Marshal(topology)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("remember the topology: %w", err)
	}
	return os.Rename(path+".new", path)
}
