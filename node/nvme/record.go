package nvme

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// record is an attached volume, or one that is being attached. It ends with the
// boot, as do the kernel's controllers.
type record struct {
	Boot    string            `json:"boot"`
	Volume  volume.ID         `json:"volume,omitempty"`
	Locator map[string]string `json:"locator,omitempty"`
	NQN     string            `json:"nqn"`
	HostNQN string            `json:"hostNQN"`
	// Device is the disk; zero until it was found. The kernel can have removed it.
	Device node.Device `json:"device,omitzero"`
	// Uncertain says when a flush could be lost; empty: none was.
	Uncertain string `json:"uncertain,omitempty"`
	// LogSeq is the last message of the kernel's log when the disk was found.
	LogSeq uint64 `json:"logSeq,omitempty"`

	name string // of the file; empty: of a controller without a record
}

// isOfAnother reports whether a record is known to be another volume's than a target.
func (r record) isOfAnother(t node.Target) bool {
	return t.Volume != "" && r.Volume != "" && r.Volume != t.Volume
}

// records are the files of a directory, one for each volume. Each is written as
// a whole.
type records struct{ dir, boot string }

const suffix = ".json"

// fileName depends on what identifies the volume, not on its paths.
func fileName(l access.NVMe) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%s\n%s", l.NQN, l.NSID, l.UUID, l.NGUID))
	return hex.EncodeToString(sum[:16]) + suffix
}

// begin returns the record of a volume, a new one if it has none. The locator's
// paths can have changed. uncertain is that of a new record.
func (s records) begin(t node.Target, l access.NVMe, h host, uncertain string) (r record, isNew bool, err error) {
	r, found, err := s.read(fileName(l))
	if err != nil {
		return r, false, err
	}
	locator := access.Encode(l)
	if found && (t.Volume == "" || r.Volume == t.Volume) && maps.Equal(r.Locator, locator) && r.HostNQN == h.nqn {
		return r, false, nil
	}
	if !found {
		r = record{Boot: s.boot, NQN: l.NQN, Uncertain: uncertain, name: fileName(l)}
	}
	if t.Volume != "" {
		r.Volume = t.Volume
	}
	r.Locator, r.HostNQN = locator, h.nqn
	return r, !found, s.put(r)
}

func (s records) put(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(s.dir, r.name), data); err != nil {
		return fmt.Errorf("write the record of an attached NVMe volume: %w", err)
	}
	return nil
}

func (s records) remove(r record) error {
	if r.name == "" {
		return nil
	}
	return durable.Remove(filepath.Join(s.dir, r.name))
}

// read returns a record of this boot.
func (s records) read(name string) (r record, found bool, err error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, false, fmt.Errorf("read the record of an attached NVMe volume: %s: %w", filepath.Join(s.dir, name), err)
	}
	r.name = name
	return r, r.Boot == s.boot, nil
}

// all returns the records of this boot, and removes older files.
func (s records) all() ([]record, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []record
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		r, current, readErr := s.read(e.Name())
		switch {
		case readErr != nil:
			err = errors.Join(err, readErr)
		case current:
			all = append(all, r)
		case r.name != "":
			err = errors.Join(err, s.remove(r))
		}
	}
	return all, err
}

// isShared reports whether another volume uses a record's connections.
func (s records) isShared(r record) (bool, error) {
	all, err := s.all()
	for _, o := range all {
		if o.NQN == r.NQN && o.HostNQN == r.HostNQN && o.name != r.name {
			return true, err
		}
	}
	return false, err
}

// bootID changes with each boot of the kernel.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
