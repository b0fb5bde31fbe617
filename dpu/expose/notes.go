package expose

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/internal/linux/flock"
)

// note is what is remembered of a device: the function that was made for it,
// which SNAP does not tell before something is on it, and never of virtio-fs.
type note struct {
	Device string       `json:"device"`
	Mode   request.Mode `json:"mode"`
	VUID   string       `json:"vuid,omitempty"`
	// Begun: SNAP was asked for a function, and had those in Known before. The
	// one that came, if it did, is none of them.
	Begun bool     `json:"begun,omitempty"`
	Known []string `json:"known,omitempty"`
	// Given is the VUID of a function that a request named, and that is not to be
	// destroyed with the exposure.
	Given string `json:"given,omitempty"`

	there bool // the note is on disk
}

// mayBe tells whether a function may be the one that was made.
func (n note) mayBe(vuid string, others []string) bool {
	return !slices.Contains(n.Known, vuid) && !slices.Contains(others, vuid)
}

// made notes the function that was made.
func (n *note) made(vuid string) { n.VUID, n.Begun, n.Known = vuid, false, nil }

// notes is a directory with a note for each device of each SNAP process.
type notes struct {
	dir    string
	socket string
}

const noteSuffix = ".json"

// prefix of the names of all notes about one process.
func (n notes) prefix() string {
	sum := sha256.Sum256([]byte(n.socket))
	return hex.EncodeToString(sum[:6]) + "-"
}

// page is the note of one device, which its holder has for itself.
type page struct {
	notes
	device string
	mode   request.Mode
	path   string
	lock   *os.File
}

// open waits until nobody else works on the device.
func (n notes) open(ctx context.Context, device string, mode request.Mode) (*page, error) {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of notes: %w", err)
	}
	sum := sha256.Sum256([]byte(string(mode) + "\x00" + device))
	p := &page{notes: n, device: device, mode: mode, path: filepath.Join(n.dir, n.prefix()+hex.EncodeToString(sum[:12])+noteSuffix)}
	for {
		lock, err := os.OpenFile(p.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the note of the device: %w", err)
		}
		if err := flock.Lock(ctx, lock); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for another exposure of the device: %w", err), lock.Close())
		}
		if p.names(lock) {
			p.lock = lock
			return p, nil
		}
		// Its last holder removed the file after it was opened here.
		if err := lock.Close(); err != nil {
			return nil, err
		}
	}
}

// names tells whether the file is still the one that others would lock.
func (p *page) names(lock *os.File) bool {
	mine, err := lock.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(p.path + ".lock")
	return err == nil && os.SameFile(mine, now)
}

// close lets others work on the device.
func (p *page) close() error {
	if _, err := os.Lstat(p.path); errors.Is(err, fs.ErrNotExist) {
		// Nothing is known of the device: leave no litter either.
		if err := os.Remove(p.path + ".lock"); err != nil {
			return errors.Join(err, p.lock.Close())
		}
	}
	return p.lock.Close()
}

func (p *page) read() (note, error) {
	n, err := readNote(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return note{}, nil
	}
	return n, err
}

func readNote(path string) (note, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return note{}, err
	}
	n := note{there: true}
	if err := json.Unmarshal(text, &n); err != nil {
		return note{}, fmt.Errorf("the note %s cannot be read (%w): remove it when nothing of its device is exposed", path, err)
	}
	return n, nil
}

// write replaces the note; whoever is killed in it leaves the old one or the new.
func (p *page) write(n note) error {
	n.Device, n.Mode = p.device, p.mode
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.path+".new", text, 0o600); err != nil {
		return fmt.Errorf("note the function: %w", err)
	}
	if err := os.Rename(p.path+".new", p.path); err != nil {
		return fmt.Errorf("note the function: %w", err)
	}
	return nil
}

// change replaces a part of the note.
func (p *page) change(part func(*note)) error {
	n, err := p.read()
	if err != nil {
		return err
	}
	part(&n)
	return p.write(n)
}

func (p *page) remove() error {
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the function: %w", err)
	}
	return nil
}

// others are the VUIDs in the notes of the process's other devices.
func (p *page) others() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, p.prefix()) || !strings.HasSuffix(name, noteSuffix) || name == filepath.Base(p.path) {
			continue
		}
		n, err := readNote(filepath.Join(p.dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // its device is hidden by now
		case err != nil:
			return nil, err
		case n.VUID != "":
			all = append(all, n.VUID)
		}
	}
	return all, nil
}
