package growfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/blockdev"
)

// openDevice does not support btrfs, which does not report its device number.
func openDevice(dir *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir.Name(), err)
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	uevent, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/uevent", major, minor))
	if err != nil {
		return nil, fmt.Errorf("name of block device %d:%d: %w", major, minor, err)
	}
	path := ""
	for line := range strings.Lines(string(uevent)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			path = filepath.Join("/dev", filepath.FromSlash(name))
		}
	}
	device, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open block device %d:%d: %w", major, minor, err)
	}
	if gotMajor, gotMinor, err := blockdev.RdevOf(device); err != nil || gotMajor != major || gotMinor != minor {
		device.Close()
		return nil, fmt.Errorf("%s is not block device %d:%d (error: %v): is this the host's /dev?", path, major, minor, err)
	}
	return device, nil
}
