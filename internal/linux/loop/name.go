package loop

import (
	"fmt"
	"os"
	"strings"
)

// BackingName returns the path of the backing file as the kernel shows it to
// this process, and whether the file was deleted under the device. A path is a
// hint for people and a place to look, never an identity: Backing is that.
// ErrGone.
func BackingName(d Device) (path string, deleted bool, err error) {
	return host().backingName(d)
}

func (k kernel) backingName(d Device) (path string, deleted bool, err error) {
	f, _, err := k.openBound(d, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close() // it holds the device to its backing while sysfs is read
	shown, err := k.shownName(d.Number)
	if err != nil {
		return "", false, fmt.Errorf("loop device %s: %w", d.Path, err)
	}
	path, deleted = strings.CutSuffix(shown, " (deleted)")
	return path, deleted, nil
}

// shownName is what the kernel shows of a bound device's file; it remembers
// that, and need not ask the file's file system.
func (k kernel) shownName(number int) (string, error) {
	text, err := os.ReadFile(k.block(number, "loop", "backing_file"))
	return strings.TrimSuffix(string(text), "\n"), err
}
