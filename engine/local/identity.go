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

// remember notes the pool. The file is durable before it gets its name: a
// power cut may lose the note, which costs a check, but must not leave an empty
// one, which would keep the pool closed.
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
	if err := writeDurably(name+".new", append(data, '\n')); err != nil {
		return fmt.Errorf("note the pool: %w", err)
	}
	return os.Rename(name+".new", name)
}

func writeDurably(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}
