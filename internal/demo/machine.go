package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
)

// checkMachine refuses a machine on which the walk cannot even begin, and says
// what to do about it.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("the demo mounts file systems and attaches loop devices: run it as root (sudo cleat demo)")
	}
	if err := checkLoops("/dev/loop-control"); err != nil {
		return err
	}
	return checkTool("mkfs.xfs", "xfsprogs", os.Getenv("PATH"))
}

func checkLoops(control string) error {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("there are no loop devices here (%w): load the module (modprobe loop); a container must be privileged and see the machine's /dev", err)
	}
	return f.Close()
}

// checkTool looks for a program where the driver will.
func checkTool(tool, debianPackage, path string) error {
	for _, dir := range append(filepath.SplitList(path), "/usr/sbin", "/sbin", "/usr/bin", "/bin") {
		if filepath.IsAbs(dir) && unix.Access(filepath.Join(dir, tool), unix.X_OK) == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is not installed: install the package %s (Debian: apt-get install %[2]s)", tool, debianPackage)
}

// checkRoom refuses a pool that is too small for the walk or too large for the
// disk.
func checkRoom(dir string, size int64) error {
	if size < MinSize {
		return fmt.Errorf("--size %s is too small: the volumes of the demo need a pool of at least %s", cli.HumanBytes(size), cli.HumanBytes(MinSize))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("--dir %s: statfs: %w", dir, err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < size+size/100 {
		return fmt.Errorf("the disk of %s has %s left, and the demo reserves a pool of %s there while it runs: name a directory on another disk with --dir, or a smaller pool with --size (at least %s)",
			dir, cli.HumanBytes(free), cli.HumanBytes(size), cli.HumanBytes(MinSize))
	}
	return nil
}

// lastLines returns up to n lines from the end of a text file, oldest first.
func lastLines(path string, n int) []string {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	buffer := make([]byte, min(info.Size(), most))
	read, _ := f.ReadAt(buffer, info.Size()-int64(len(buffer))) // what can be read is shown
	lines := strings.Split(strings.TrimRight(string(buffer[:read]), "\n"), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines[max(0, len(lines)-n):]
}
