package fsinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ext4 reads the error counters in /sys/fs/ext4/<device>.
func (r Reader) ext4(mountpoint string) (Faults, error) {
	var st unix.Stat_t
	if err := unix.Stat(mountpoint, &st); err != nil {
		return Faults{}, fmt.Errorf("stat: %w", err)
	}
	return r.ext4Device(unix.Major(st.Dev), unix.Minor(st.Dev))
}

func (r Reader) ext4Device(major, minor uint32) (Faults, error) {
	root := r.Sysfs
	if root == "" {
		root = "/sys"
	}
	link, err := os.Readlink(filepath.Join(root, "dev/block", fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return Faults{}, fmt.Errorf("name of block device %d:%d: %w", major, minor, err)
	}
	dir := counters(filepath.Join(root, "fs/ext4", filepath.Base(link)))
	count, err := dir.number("errors_count")
	if err != nil || count == 0 {
		return Faults{}, err
	}
	f := Faults{Count: count, First: dir.event("first"), Last: dir.event("last")}
	f.Detail = fmt.Sprintf("%d errors, the last in %s at %s", count, orUnknown(f.Last.Function), orUnknown(formatTime(f.Last.Time)))
	return f, nil
}

type counters string

func (c counters) text(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(string(c), name))
	return strings.TrimSpace(string(b)), err
}

func (c counters) number(name string) (uint64, error) {
	text, err := c.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", c, name, err)
	}
	return n, nil
}

// event reads the details of one error. Values that older kernels do not
// provide stay zero.
func (c counters) event(which string) Event {
	var e Event
	if seconds, err := c.number(which + "_error_time"); err == nil && seconds > 0 && seconds < 1<<40 {
		e.Time = time.Unix(int64(seconds), 0).UTC()
	}
	e.Function, _ = c.text(which + "_error_func")
	return e
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return s
}
