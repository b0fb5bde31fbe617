package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/volume"
)

// noteName is the file in the state directory that remembers which pool was
// served from which path.
const noteName = "local-pool.json"

// note is its content.
type note struct {
	Path string `json:"path"`
	UUID string `json:"uuid"`
}

// remembered returns the UUID of the pool that was last served from the path;
// empty when none was.
func remembered(stateDir, path string) (string, error) {
	if stateDir == "" {
		return "", nil
	}
	name := filepath.Join(stateDir, noteName)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil {
		return "", volume.Errorf(volume.Precondition, "%s cannot be read: %w; remove it if the right disk is mounted", name, err)
	}
	if n.Path != path {
		return "", nil
	}
	return n.UUID, nil
}

// remember notes the pool. A note that is lost costs a check, not data, so the
// rename needs no more than its atomicity.
func remember(stateDir, path, uuid string) error {
	if stateDir == "" {
		return nil
	}
	if known, err := remembered(stateDir, path); err != nil || known == uuid {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(note{Path: path, UUID: uuid})
	if err != nil {
		return err
	}
	name := filepath.Join(stateDir, noteName)
	if err := os.WriteFile(name+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("note the pool: %w", err)
	}
	return os.Rename(name+".new", name)
}
